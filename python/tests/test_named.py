"""Caches as objects, and answers whose blocks a `with` statement holds."""

import asyncio
import inspect
import unittest

from cairn import AsyncClient
from cairn._base import ClientBase, Verb
from cairn.errors import UnknownCache, UnknownLease
from cairn.leased import Leased
from cairn.named import AsyncCache, Cache, CacheBase, CacheVerb
from server import ServerCase, block, key


class CachesAsObjects(ServerCase):
    def setUp(self) -> None:
        super().setUp()
        self.make()
        self.cache = self.client.cache(self.name)

    def test_its_verbs_are_the_clients_for_this_cache(self) -> None:
        self.cache.put(key(1), block(1))
        self.assertEqual(self.client.get(self.name, key(1)), block(1))
        self.assertEqual(self.cache.get(key(1)), block(1))
        self.assertEqual(self.cache.info(), self.client.cache_info(self.name))
        self.assertEqual(self.cache.contains([key(1), key(2)]), "p.")
        self.cache.drop(force=True)
        with self.assertRaises(UnknownCache):
            self.cache.info()

    def test_it_has_each_verb_that_names_a_cache_first(self) -> None:
        def names_a_cache(verb: Verb[..., object]) -> bool:
            first = next(iter(inspect.signature(verb.make).parameters.values()), None)
            return first is not None and first.name == "cache" and first.default is first.empty

        verbs = [verb for verb in vars(ClientBase).values() if isinstance(verb, Verb)]
        named = {verb.make for verb in verbs if names_a_cache(verb)}
        self.assertEqual({verb.make for verb in vars(CacheBase).values() if isinstance(verb, CacheVerb)}, named)

    def test_help_shows_the_parameters_without_the_cache(self) -> None:
        for kind in (Cache, AsyncCache):
            self.assertEqual(str(inspect.signature(kind.info)).split(" ->")[0], "(self, /)")
            self.assertNotIn("cache:", str(inspect.signature(kind.match)))
        self.assertIn(self.name, repr(self.cache))
        self.assertIn(self.client.url, repr(self.cache))


class LeasesOfAWith(ServerCase):
    def setUp(self) -> None:
        super().setUp()
        self.make()
        self.client.put(self.name, key(1), block(1))

    def leases(self) -> int | None:
        return self.client.cache_info(self.name).leases

    def test_the_end_of_the_block_releases_the_blocks(self) -> None:
        with self.client.match(self.name, [key(1)]) as hit:
            self.assertEqual(hit.matched, 1)
            self.assertEqual(self.leases(), 1)
        self.assertEqual(self.leases(), 0)
        with self.client.cache(self.name).allocate(2) as slots:
            self.assertEqual(len(slots.blocks), 2)
            self.assertEqual(self.leases(), 1)
        self.assertEqual(self.leases(), 0)

    def test_a_match_that_pins_nothing_has_nothing_to_release(self) -> None:
        with self.client.match(self.name, [key(2)]) as miss:
            self.assertIsNone(miss.lease)
        with self.client.match(self.name, [key(1)], lease_ms=0) as look:
            self.assertEqual(look.matched, 1)

    def test_a_lease_that_was_released_before_is_no_error(self) -> None:
        with self.client.match(self.name, [key(1)]) as hit:
            assert hit.lease is not None
            self.client.release(hit.lease)
        with self.assertRaises(UnknownLease):
            self.client.release(hit.lease)

    def test_the_blocks_own_error_is_the_one_that_is_raised(self) -> None:
        with self.assertRaises(ZeroDivisionError), self.client.match(self.name, [key(1)]):
            raise ZeroDivisionError
        self.assertEqual(self.leases(), 0)
        with self.assertRaises(ZeroDivisionError), self.client.match(self.name, [key(1)]):
            self.client.drop_cache(self.name, force=True)
            raise ZeroDivisionError

    def test_without_a_with_the_lease_stays(self) -> None:
        self.client.match(self.name, [key(1)])
        self.assertEqual(self.leases(), 1)


class LeasesOfAnAsyncWith(ServerCase, unittest.IsolatedAsyncioTestCase):
    async def test_it_releases_with_and_without_await(self) -> None:
        self.make()
        self.client.put(self.name, key(1), block(1))
        async with AsyncClient(self.client.url) as client:
            cache = client.cache(self.name)
            async with cache.match([key(1)]) as hit:
                self.assertEqual((hit.matched, (await cache.info()).leases), (1, 1))
            self.assertEqual((await cache.info()).leases, 0)
            async with await client.match(self.name, [key(1)]) as hit:
                self.assertEqual((await cache.info()).leases, 1)
            self.assertEqual((await cache.info()).leases, 0)
            with self.assertRaises(ZeroDivisionError):
                async with cache.allocate(1):
                    raise ZeroDivisionError
            self.assertEqual((await cache.info()).leases, 0)

    async def test_it_can_be_a_task(self) -> None:
        self.make()
        async with AsyncClient(self.client.url) as client:
            found = await asyncio.create_task(client.match(self.name, [key(1)]))
            self.assertIsInstance(found, Leased)
            self.assertEqual(found.matched, 0)


if __name__ == "__main__":
    unittest.main()
