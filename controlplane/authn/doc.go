// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package authn authenticates callers: it converts the credentials of a gRPC call (a bearer token
// or a client certificate) to the identity of a workload.
//
// The discovery service and the certificate authority call it once for each stream or call. Methods
// are tried in order and the first success wins; if none succeeds, the error contains the reason of
// each failure.
//
// The package trusts only what it verified itself (the signature of a token, or the chain that the
// TLS handshake verified) and the answers of a Kubernetes API server. It never includes parts of a
// token in an error or a log, and contacts only configured hosts. JWT.Run is the goroutine that
// fetches keys from a URL; a token review runs in a goroutine that ends at its timeout.
package authn
