// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inject

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// systemNamespaces are the namespaces of Kubernetes, whose pods never receive a proxy.
var systemNamespaces = []string{metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease, "local-path-storage"}

// decision is whether a pod receives a proxy, and why.
type decision struct {
	inject  bool
	reason  string
	warning string // for the user, or empty
}

// decide decides about a pod.
func (c *Config) decide(pod *corev1.Pod, namespace string) decision {
	switch {
	case pod.Spec.HostNetwork:
		return decision{reason: "it uses the network of its node"}
	case slices.Contains(systemNamespaces, namespace):
		return decision{reason: "its namespace belongs to Kubernetes"}
	}
	kind, asked := "annotation", pod.Annotations[nameInject]
	if label, ok := pod.Labels[nameInject]; ok {
		kind, asked = "label", label
	}
	d := decision{}
	switch asked {
	case "true":
		return decision{inject: true, reason: "its " + kind + " requests it"}
	case "false":
		return decision{reason: "its " + kind + " refuses it"}
	case "":
	default:
		d.warning = fmt.Sprintf("%s %s is %s; it must be \"true\" or \"false\"; it has no effect", kind, nameInject, clipped(asked))
	}
	matches := func(s labels.Selector) bool { return s.Matches(labels.Set(pod.Labels)) }
	switch {
	case slices.ContainsFunc(c.never, matches):
		d.reason = "neverInjectSelector selects it"
	case slices.ContainsFunc(c.always, matches):
		d.inject, d.reason = true, "alwaysInjectSelector selects it"
	default:
		d.inject, d.reason = c.Policy == PolicyEnabled, "the policy is "+c.Policy
	}
	return d
}
