// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package kube contains all uses of the Kubernetes API: token and access reviews, the Secret of the
// certificate authority, signing through certificates.k8s.io, the roots in each namespace, the
// Secrets of gateways, and the services and pods of clusters. No other package imports client-go.
//
// Package controlplane/server creates one Client for each cluster and connects its parts to
// controlplane/authn, controlplane/ca and controlplane/credentials, whose interfaces they
// implement. Each part documents the permissions that it requires.
//
// The package never logs or wraps the data of a Secret, a token, or a key. Informers and reflectors
// run in Secrets.Run, Roots.Run and Registry.Run, among others, and drop unused annotations,
// managed fields and data. Everything else runs in the goroutine of the caller.
package kube
