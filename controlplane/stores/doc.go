// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package stores opens every kind of config store by its URL. It is the one
// place that knows all of them; who only needs the contract imports package
// config.
package stores
