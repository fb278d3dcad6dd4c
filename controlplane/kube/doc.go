// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package kube is every use of the Kubernetes API: who holds a token and what
// that account may read, the Secret of the certificate authority, signing by
// certificates.k8s.io, the roots in each namespace, the Secrets that gateways
// name, and the services and pods of clusters. No other package imports
// client-go.
//
// controlplane/server makes one Client for each cluster and wires its parts to
// controlplane/authn, controlplane/ca and controlplane/credentials, whose
// interfaces they implement. What the package needs to be allowed to do stands
// at each part.
//
// Nothing here logs or wraps the data of a Secret, a token, or a key. Informers
// and reflectors run below Secrets.Run, Roots.Run and Registry.Run and keep no
// annotations, managed fields or data that nobody reads. Everything else runs in
// the goroutine of the caller.
package kube
