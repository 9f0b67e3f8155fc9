#pragma once

#include <memory>

#include "base/result.hpp"
#include "transport/s3/s3_settings.hpp"
#include "transport/store/remote_store.hpp"

namespace cairn {

// A store in a bucket of any S3. Values are gathered into large objects and read by range. The
// store knows which value lies where from the objects' directories, also of other servers' objects.
// So a probe costs no request. A name that is not known is `unknown` until the first listing has
// ended, then `absent`. There are no holders.
//
// It has a separate thread. A failed bucket is paused as a Redis node is. Errors: malformed or
// not_found if the settings or the credentials cannot be used.
Result<std::unique_ptr<RemoteStore>> make_s3_store(S3Settings settings);

}  // namespace cairn
