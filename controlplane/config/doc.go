// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package config is the contract of the stores of configuration objects
// (VirtualService, ServiceEntry and so on), and what all stores share.
//
// A [Store] holds objects, reports changes and takes writes. The packages below
// implement it: file, memory, etcd and mcp; package kube has the store of a
// Kubernetes cluster. [Aggregate] joins several stores, and [Open] opens the
// store of a URL. All of them pass the suite of package storetest.
//
// The package never decides what an object means for a proxy, and never lets one
// bad object harm another: what is wrong becomes a [model.Problem], and the last
// good version stays in force.
//
// [Cache] is the part that stores share: one goroutine calls the handlers.
// [Aggregate] adds one goroutine for each of its stores.
package config
