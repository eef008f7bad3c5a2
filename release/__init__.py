"""What a release is made of: `make dist`, `make release-check`; see docs/internals/releasing.md."""
