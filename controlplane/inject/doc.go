// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package inject adds proxies to pods.
//
// An [Injector] decides whether a pod receives a proxy, renders the templates that the pod
// selects, merges them with the pod, and rewrites probes and Prometheus annotations so that they
// reach the agent. The templates sidecar, gateway, grpc-agent and grpc-simple are built in;
// others are Go templates in the configuration. Annotations, labels, values and template
// functions are those of Istio. [File] does the same for the objects of a YAML file.
//
// controlplane/webhook calls the package for each pod that the API server creates, and the command
// outrigger inject for files. The package is pure: no I/O, no goroutines, no clock.
package inject
