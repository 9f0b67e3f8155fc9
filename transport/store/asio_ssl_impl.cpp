// Asio's TLS, compiled once: it is not in cairn_net, whose other users have none.
#include <boost/asio/ssl/impl/src.hpp>
