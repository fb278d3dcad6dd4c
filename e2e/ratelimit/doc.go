// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package ratelimit tests examples/limits/global.yaml with the reference service of Envoy's rate
// limit protocol, and Envoy's filter of Redis with a server and a client. It is a module of its own
// because of their dependencies.
package ratelimit
