// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package jwks fetches the public keys of token issuers: JSON Web Key Sets, by URL or by OpenID
// Connect Discovery.
//
// A [Remote] follows the keys of one issuer, for the control plane's own callers. A [Follower]
// follows those that RequestAuthentications name: each issuer by itself, with the last good keys on
// disk. The names are written by users of the mesh, so every address is checked before connecting.
//
// Fetched keys stay in use until the issuer publishes others. Keys that are private, symmetric or
// too small are never used. Remote.Run and Follower.Run own the goroutines of the package.
package jwks
