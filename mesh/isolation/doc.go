// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package isolation runs the workloads of a mesh in network namespaces of their own, whose traffic is
// redirected to Envoy. Package mesh calls it.
//
// A [Network] is a bridge in one more namespace, the hub, with a namespace for each workload. It
// changes nothing in the network of the machine: no interface, route, rule or setting. Connections
// between the two are made by relays of this process, each with a socket in both: from loopback
// addresses of the machine to workloads ([Network.Publish]), and from workloads to the machine and
// beyond, where the hub accepts what the workloads send to other addresses. DNS queries of the agents
// end in a DNS server of the hub, which forwards them to the resolvers of the machine.
//
// A [Place] is where a process runs: a namespace, files that it sees, and a user without
// capabilities. Namespaces are held by descriptors of this process and by the processes in them, so
// the kernel removes everything when they end, however they end.
//
// The package starts no process and writes only below the directory that it is given. [Network.Run]
// owns all goroutines; a call in a namespace has a thread of its own, which ends with the call.
package isolation
