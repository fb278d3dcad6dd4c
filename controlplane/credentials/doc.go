// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package credentials knows the TLS certificates, keys and roots that gateways
// and DestinationRules name with credentialName: what a name means, what a
// Secret must hold, who may refer to it, and where it comes from.
//
// A [Source] gives them. The one here reads the YAML of Secrets from a
// directory; the one of Kubernetes is in controlplane/kube. Both keep what they
// read in a [Table], which checks it and keeps the last good version of a
// credential that goes bad. The generator of secrets asks [KeyPairOf] and
// [RootsOf]; whether the caller may read Secrets at all is decided elsewhere.
//
// Private keys stay in memory, and no text of a Secret ever gets into an error
// or a log. FileSource.Run is the one goroutine.
package credentials
