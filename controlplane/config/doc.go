// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package config defines the stores of configuration objects (VirtualService,
// ServiceEntry and so on), and the code that all stores share.
//
// A [Store] contains objects, reports changes and accepts writes. The packages below
// implement it: file, memory, etcd and mcp; package kube has the store of a
// Kubernetes cluster. [Aggregate] combines several stores, and [Open] opens the store
// of a URL. All of them pass the suite of package storetest.
//
// The package never decides what an object means for a proxy. An invalid object does
// not affect others: it causes a [model.Problem], and its last good version stays in
// force.
//
// Stores share [Cache], of which one goroutine calls the handlers. [Aggregate] adds one
// goroutine for each of its stores.
package config
