"""Every verb of the API as a function that makes its `Call`. The clients have one method for each."""
