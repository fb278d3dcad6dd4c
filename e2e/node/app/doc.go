// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Program app runs in the Pods of the tests: a server, a client that sends requests and counts
// failures, the process that holds a Pod's namespaces, and under the name client the one of the
// conformance tests.
package main
