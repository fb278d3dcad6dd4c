// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Program app is what the Pods of the tests run: a server, a client that sends requests and counts
// failures, and the process that holds a Pod's namespaces.
package main
