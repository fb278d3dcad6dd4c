// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package footprint keeps the resident memory of the programs small.
package footprint
