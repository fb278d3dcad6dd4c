// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inject

import (
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// owner is the object that a user wrote and that the pod comes from.
type owner struct {
	apiVersion, kind, namespace, name string
}

// cronJobName matches the name of a Job of a CronJob, which ends with the minute of its start.
var cronJobName = regexp.MustCompile(`^(.+)-\d{8,10}$`)

// ownerOf finds the owner of a pod by its controller. The controllers of the controller are not
// known; their kinds and names follow from the names that Kubernetes generates.
func ownerOf(pod *corev1.Pod, namespace string) owner {
	o := owner{apiVersion: "v1", kind: "Pod", namespace: namespace, name: pod.Name}
	if pod.GenerateName == "" {
		return o
	}
	for _, ref := range pod.OwnerReferences {
		if ref.Controller == nil || !*ref.Controller {
			continue
		}
		o.apiVersion, o.kind, o.name = ref.APIVersion, ref.Kind, ref.Name
		trimmed := func(label string) (string, bool) {
			hash := pod.Labels[label]
			return strings.TrimSuffix(ref.Name, "-"+hash), hash != "" && strings.HasSuffix(ref.Name, "-"+hash)
		}
		switch ref.Kind {
		case "ReplicaSet":
			if name, ok := trimmed("pod-template-hash"); ok {
				o.kind, o.name = "Deployment", name
			} else if name, ok := trimmed("rollouts-pod-template-hash"); ok {
				o.apiVersion, o.kind, o.name = "v1alpha1", "Rollout", name
			}
		case "ReplicationController":
			if name := pod.Labels["deploymentconfig"]; name != "" {
				o.kind, o.name = "DeploymentConfig", name
			}
		case "Job":
			if found := cronJobName.FindStringSubmatch(ref.Name); found != nil {
				o.apiVersion, o.kind, o.name = "batch/v1", "CronJob", found[1]
			}
		}
		break
	}
	return o
}

// String returns the owner as ISTIO_META_OWNER has it.
func (o owner) String() string {
	namespace := o.namespace
	if namespace == "" {
		namespace = corev1.NamespaceDefault
	}
	return "kubernetes://apis/" + o.apiVersion + "/namespaces/" + namespace + "/" + strings.ToLower(o.kind) + "s/" + o.name
}
