"""The shipped test code: probes of fault tests, and conformance tests of clients and hosts."""
