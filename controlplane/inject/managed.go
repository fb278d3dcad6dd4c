// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inject

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// Managed returns the pod of a Deployment that runs the proxies of a Gateway. The pod has the
// labels, the annotations and the service account of the argument, which is not modified. It needs
// no injection. An error is about an annotation: it names the annotation, its value and the cure.
func (in *Injector) Managed(pod *corev1.Pod, namespace, deployment string) (*corev1.Pod, error) {
	j, err := in.newJob(Request{Pod: pod, Namespace: namespace, owner: &owner{
		apiVersion: "apps/v1", kind: "Deployment", namespace: namespace, name: deployment,
	}})
	if err != nil {
		return nil, err
	}
	rendered := j.managed()
	if err := j.err(); err != nil {
		return nil, err
	}
	fields, err := partial(rendered)
	if err != nil {
		return nil, err
	}
	out, err := merge(pod, fields)
	if err != nil {
		return nil, fmt.Errorf("merge the template of a gateway with its pod: %w", err)
	}
	return out, nil
}

// managed renders a gateway that needs no privileges: nobody else adds to its container.
func (j *job) managed() *corev1.Pod {
	p := j.gateway()
	c := &p.Spec.Containers[0]
	c.Resources = j.resources()
	c.Ports = append([]corev1.ContainerPort{
		{ContainerPort: 15020, Protocol: corev1.ProtocolTCP, Name: "metrics"},
		{ContainerPort: readyPort, Protocol: corev1.ProtocolTCP, Name: "status-port"},
	}, c.Ports...)
	c.StartupProbe = &corev1.Probe{ProbeHandler: ready(readyPort), InitialDelaySeconds: 1, PeriodSeconds: 1, TimeoutSeconds: 3, FailureThreshold: 30}
	c.SecurityContext = &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(false), Privileged: new(false), ReadOnlyRootFilesystem: new(true),
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		RunAsNonRoot: new(true), RunAsUser: &j.user, RunAsGroup: &j.group,
	}
	return p
}
