// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package ratelimit tests examples/limits/global.yaml with the reference service of Envoy's rate
// limit protocol. It is a module of its own because of the dependencies of that service.
package ratelimit
