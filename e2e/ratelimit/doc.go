// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package ratelimit tests examples/limits/global.yaml with the reference service of Envoy's rate
// limit protocol, and Envoy's filters of Redis and MongoDB with clients. It is a module of its own because
// of their dependencies.
package ratelimit
