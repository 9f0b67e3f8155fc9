// Asio's TLS code, compiled once. It is not in cairn_net, whose other users need no TLS.
#include <boost/asio/ssl/impl/src.hpp>
