// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package authn answers who is calling: it turns what a gRPC call carries (a
// bearer token, a client certificate) into the identity of a workload.
//
// The discovery service and the certificate authority ask it once for each
// stream or call. Methods are tried in their order and the first success wins;
// if none succeeds, the error names the reason of each of them.
//
// The package trusts only what it verified itself (the signature of a token, or
// the chain that the TLS handshake verified) and what a Kubernetes API server
// says. It never puts a part of a token into an error or a log, and asks only
// hosts that are configured. JWT.Run is the goroutine that fetches keys behind a
// URL; a review of a token runs in a goroutine that ends with its time limit.
package authn
