"""Building requests and parsing answers, without a socket."""

import unittest

from cairn.errors import BadAnswer, NoCapacity, Refused, refusal
from cairn.http import Request, ResponseReader, head_of, may_send_again, target


def fed(reader: ResponseReader, data: bytes, piece: int) -> ResponseReader:
    while data and not reader.done:
        count = min(piece, len(data), len(reader.room))
        reader.room[:count] = data[:count]
        reader.got(count)
        data = data[count:]
    return reader


class Answers(unittest.TestCase):
    ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Y: a: b\r\n\r\nhello"

    def test_an_answer_is_the_same_in_pieces_of_any_size(self) -> None:
        for piece in range(1, len(self.ANSWER) + 1):
            answer = fed(ResponseReader("GET"), self.ANSWER, piece).answer()
            self.assertEqual((answer.status, answer.body, answer.headers["x-y"]), (200, b"hello", "a: b"))

    def test_chunks_are_joined_and_trailers_dropped(self) -> None:
        data = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\nT: 1\r\n\r\n"
        for piece in (1, 7, len(data)):
            reader = fed(ResponseReader("GET"), data, piece)
            self.assertTrue(reader.keeps_alive)
            self.assertEqual(reader.answer().body, b"hello")

    def test_a_body_without_a_length_ends_with_the_connection(self) -> None:
        reader = fed(ResponseReader("GET"), b"HTTP/1.1 200 OK\r\n\r\nhello", 4)
        self.assertFalse(reader.done)
        reader.got(0)
        self.assertEqual(reader.answer().body, b"hello")
        self.assertFalse(reader.keeps_alive)

    def test_a_truncated_answer_is_an_error(self) -> None:
        for length in range(1, len(self.ANSWER)):
            reader = fed(ResponseReader("GET"), self.ANSWER[:length], length)
            with self.assertRaises(BadAnswer):
                reader.got(0)

    def test_head_and_empty_answers_have_no_body(self) -> None:
        head = fed(ResponseReader("HEAD"), b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", 99)
        empty = fed(ResponseReader("DELETE"), b"HTTP/1.1 204 No Content\r\n\r\n", 99)
        self.assertEqual((head.answer().body, empty.answer().status), (b"", 204))

    def test_an_interim_answer_is_skipped(self) -> None:
        data = b"HTTP/1.1 100 Continue\r\n\r\n" + self.ANSWER
        self.assertEqual(fed(ResponseReader("PUT"), data, 9).answer().body, b"hello")

    def test_unexpected_bytes_end_the_connection(self) -> None:
        self.assertFalse(fed(ResponseReader("GET"), self.ANSWER + b"HTTP", 99).keeps_alive)
        close = self.ANSWER.replace(b"X-Y: a: b", b"Connection: close")
        self.assertFalse(fed(ResponseReader("GET"), close, 99).keeps_alive)

    def test_an_invalid_answer_is_an_error(self) -> None:
        for data in (
            b"SSH-2.0-x\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nnonsense\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
            b"x" * 200_000,
        ):
            with self.subTest(data[:40]), self.assertRaises(BadAnswer):
                fed(ResponseReader("GET"), data, 4096)


class Requests(unittest.TestCase):
    def test_a_path_is_quoted_and_none_is_left_out(self) -> None:
        self.assertEqual(target("v1", "a/b", query={"x": None, "y": True, "z": "ä"}), "/v1/a%2Fb?y=true&z=%C3%A4")

    def test_the_head_names_host_token_and_length(self) -> None:
        head = head_of(Request("PUT", "/x", (("A", "b"),), (b"12", b"345")), "h:1", "secret")
        self.assertEqual(
            head,
            b"PUT /x HTTP/1.1\r\nHost: h:1\r\nAuthorization: Bearer secret\r\nA: b\r\nContent-Length: 5\r\n\r\n",
        )

    def test_only_safe_requests_are_sent_twice(self) -> None:
        get, post = Request("GET", "/", idempotent=True), Request("POST", "/")
        self.assertTrue(may_send_again(get, kept=True, sent_bytes=9, got_bytes=0))
        self.assertFalse(may_send_again(get, kept=False, sent_bytes=9, got_bytes=0))
        self.assertFalse(may_send_again(get, kept=True, sent_bytes=9, got_bytes=1))
        self.assertFalse(may_send_again(post, kept=True, sent_bytes=9, got_bytes=0))
        self.assertTrue(may_send_again(post, kept=True, sent_bytes=0, got_bytes=0))


class Refusals(unittest.TestCase):
    def test_a_code_has_its_class(self) -> None:
        problem = b'{"type":"t","title":"t","status":507,"detail":"full","code":"no_capacity"}'
        error = refusal(507, problem, "2")
        self.assertIsInstance(error, NoCapacity)
        self.assertEqual((error.status, error.detail, error.retry_after_s), (507, "full", 2.0))

    def test_unknown_codes_and_a_proxys_page_are_refusals(self) -> None:
        self.assertEqual(refusal(418, b'{"code":"new_word","detail":"d"}', None).code, "new_word")
        self.assertIs(type(refusal(502, b"<html>", None)), Refused)


if __name__ == "__main__":
    unittest.main()
