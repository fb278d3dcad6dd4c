// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package autoregister keeps the WorkloadEntry objects of machines that join a
// WorkloadGroup by themselves: an entry comes with the proxy, and goes a while
// after it.
//
// Discovery calls a [Controller] when a proxy connects and when its stream has
// ended; the config store tells it of groups and entries. For each entry the
// controller compares what is connected here with what is in the store, and
// writes what differs. It receives its own writes and of those of other
// replicas alike, so that it makes no difference who wrote, in which order, or
// how often something was tried.
//
// Names and annotations are Istio's. A replica that has the stream of a proxy
// writes its own name into the entry; the one that wrote last has it. Who sees an
// entry that is marked as left, while its proxy is connected here, takes it back
// at once: a mark is also the question whether anybody has the proxy, which is
// how entries are found whose replica has crashed. Times in the annotations are
// for users: how long something lasts each replica measures by itself, so that
// clocks may differ and jump. Each write and removal names the version of the
// entry that it was decided on.
//
// [Index] tells the labels of a proxy as its entry has them.
package autoregister
