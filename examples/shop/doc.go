// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Command shop is the program of the example mesh: three small HTTP servers
// in one binary.
//
//	shop frontend --listen 127.0.0.1:18080
//	shop catalog  --listen 127.0.0.1:18081 --version v1
//	shop orders   --listen 127.0.0.1:18083
//
// The frontend asks the two others through the proxy that HTTP_PROXY names,
// its own Envoy. Nothing here knows of the mesh: it is an application as
// anybody would write it. It keeps its orders in memory only.
package main
