// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inject

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// The annotations with which OpenShift assigns users and groups to the pods of a namespace.
const (
	uidRange = "openshift.io/sa.scc.uid-range"
	groups   = "openshift.io/sa.scc.supplemental-groups"
)

// NamespaceAnnotations are the annotations of namespaces that [Injector.Annotations] returns.
var NamespaceAnnotations = []string{uidRange, groups}

// user sets the user and the group of the proxy: on OpenShift the last ones of the ranges of the
// namespace, as in Istio, because the application has the first ones. It returns a warning about an
// annotation that it cannot read.
func (in *Injector) user(j *job, namespace string) (warning string, err error) {
	j.user, j.group = proxyID, proxyID
	if in.Annotations == nil {
		return "", nil
	}
	a, err := in.Annotations(namespace)
	if err != nil {
		return "", err
	}
	for _, name := range NamespaceAnnotations {
		if a[name] == "" {
			continue
		}
		first, _, _ := strings.Cut(a[name], ",")
		last, ok := lastOf(first)
		switch {
		case !ok:
			warning = fmt.Sprintf("annotation %s of the namespace is %s: it is ignored; write START/SIZE or START-END", name, clipped(a[name]))
		case name == uidRange:
			j.user, j.group = last, last
		default:
			j.group = last
		}
	}
	return warning, nil
}

// lastOf returns the last number of START/SIZE or START-END.
func lastOf(block string) (last int64, ok bool) {
	from, to, size := strings.Cut(block, "/")
	if !size {
		from, to, _ = strings.Cut(block, "-")
	}
	start, err := strconv.ParseUint(from, 10, 31)
	n, errN := strconv.ParseUint(to, 10, 31)
	if size {
		n += start - 1
	}
	return int64(n), err == nil && errN == nil && n >= start && n < 1<<31
}

// withoutAssigned returns a pod whose istio-proxy container does not name the user of the
// applications: OpenShift assigns the same user to all containers, and connections of that user would
// not be redirected. The pod is copied if it changes.
func (in *Injector) withoutAssigned(pod *corev1.Pod) *corev1.Pod {
	own := findContainer(proxyName, pod)
	if in.Annotations == nil || own == nil || own.SecurityContext == nil || own.SecurityContext.RunAsUser == nil {
		return pod
	}
	same := func(c corev1.Container) bool {
		return !slices.Contains([]string{proxyName, initName, validationName}, c.Name) && c.SecurityContext != nil &&
			c.SecurityContext.RunAsUser != nil && *c.SecurityContext.RunAsUser == *own.SecurityContext.RunAsUser
	}
	if !slices.ContainsFunc(pod.Spec.Containers, same) && !slices.ContainsFunc(pod.Spec.InitContainers, same) {
		return pod
	}
	out := pod.DeepCopy()
	context := findContainer(proxyName, out).SecurityContext
	context.RunAsUser, context.RunAsGroup = nil, nil
	return out
}
