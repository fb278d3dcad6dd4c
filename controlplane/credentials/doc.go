// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package credentials manages the TLS certificates, keys and roots that gateways and
// DestinationRules refer to with credentialName: the syntax of references, the content of Secrets
// and of ConfigMaps with roots, the access rules, and the sources.
//
// [FileSource] reads Secrets and ConfigMaps in YAML from a directory; the sources for Kubernetes
// are in controlplane/kube. They store Secrets in a [Table], which validates them and keeps the last
// valid version of a credential that becomes invalid. The generator of secrets calls [KeyPairOf]
// and [RootsOf]. Whether a caller may read Secrets at all is decided elsewhere.
//
// Private keys stay in memory, and errors and logs never contain text of a Secret. FileSource.Run
// is the only goroutine.
package credentials
