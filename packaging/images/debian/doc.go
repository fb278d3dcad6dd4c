// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package debian reads packages of the Debian archive that a lock file pins by
// version and SHA-256, and pins newer ones. It installs nothing and runs nothing
// of a package.
package debian
