// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package chart tests charts/outrigger with Helm's own library against a real kube-apiserver: install,
// upgrade, rollback and uninstall, other appliers, the values' schema, and the rights of the control
// plane. outrigger install must render what Helm renders.
//
// There is no kubelet: outrigger-control runs beside the cluster, with the arguments, the environment,
// the service account and the ConfigMaps that the chart renders, and kube-apiserver reaches it through
// the chart's Service.
//
// It is a module of its own so that Helm's dependencies stay out of the others.
package chart
