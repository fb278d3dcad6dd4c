// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Command bookinfo is the bookshop known from tutorials of service
// meshes, as four small HTTP servers in one binary.
//
//	bookinfo productpage --listen 127.0.0.1:19080
//	bookinfo details     --listen 127.0.0.1:19081
//	bookinfo reviews     --listen 127.0.0.1:19082 --version v1
//	bookinfo ratings     --listen 127.0.0.1:19085
//
// The page of a book is made of its details and its reviews; reviews of version
// v2 and v3 ask for ratings, and show them as black and red stars. Requests go
// through the proxy that HTTP_PROXY names. The header end-user travels with them.
package main
