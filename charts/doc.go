// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package charts holds the Helm chart of the control plane, which is also what outrigger install
// renders. It contains no logic.
//
// The definitions in outrigger/crds are made from the table of package controlplane/config/schema by
// make generate.
package charts

import "embed"

// Chart are the files of the chart, below the directory [Root].
//
//go:embed all:outrigger
var Chart embed.FS

// Root is the directory of the chart in [Chart].
const Root = "outrigger"
