// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inject

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// autoImage is the image of a container whose other fields a user sets: the template has the image.
const autoImage = "auto"

// containers are containers that a pod and a template have in common, as the pod had them.
type containers struct {
	Containers     []corev1.Container `json:"containers,omitempty"`
	InitContainers []corev1.Container `json:"initContainers,omitempty"`
}

// status is what an injection added, by names, in an annotation.
type status struct {
	InitContainers   []string `json:"initContainers"`
	Containers       []string `json:"containers"`
	Volumes          []string `json:"volumes"`
	ImagePullSecrets []string `json:"imagePullSecrets"`
	Revision         string   `json:"revision"`
}

// statusOf returns what an earlier injection added, nil if there was none.
func statusOf(pod *corev1.Pod) *status {
	s := &status{}
	if doc, ok := pod.Annotations[nameStatus]; !ok || json.Unmarshal([]byte(doc), s) != nil {
		return nil
	}
	return s
}

// newStatus returns the status of a rendered template.
func newStatus(rendered *corev1.Pod, revision string) *status {
	s := &status{Revision: revision, InitContainers: namesOf(rendered.Spec.InitContainers), Containers: namesOf(rendered.Spec.Containers)}
	for i := range rendered.Spec.Volumes {
		s.Volumes = append(s.Volumes, rendered.Spec.Volumes[i].Name)
	}
	for _, secret := range rendered.Spec.ImagePullSecrets {
		s.ImagePullSecrets = append(s.ImagePullSecrets, secret.Name)
	}
	return s
}

func namesOf(list []corev1.Container) []string {
	var names []string
	for i := range list {
		names = append(names, list[i].Name)
	}
	return names
}

// find returns the container with a name, or nil.
func find(list []corev1.Container, name string) *corev1.Container {
	if i := slices.IndexFunc(list, func(c corev1.Container) bool { return c.Name == name }); i >= 0 {
		return &list[i]
	}
	return nil
}

// findContainer returns the container or init container with a name, or nil.
func findContainer(name string, pod *corev1.Pod) *corev1.Container {
	if c := find(pod.Spec.Containers, name); c != nil {
		return c
	}
	return find(pod.Spec.InitContainers, name)
}

// parseOverrides returns the containers of the pod's own that an earlier injection merged.
func parseOverrides(pod *corev1.Pod) (containers, error) {
	var c containers
	if doc, ok := pod.Annotations[nameOverrides]; ok {
		if err := json.Unmarshal([]byte(doc), &c); err != nil {
			return c, fmt.Errorf("annotation %s: %w", nameOverrides, err)
		}
	}
	return c, nil
}

// stripped returns a copy of the pod as it was before an earlier injection, as far as templates look
// at it. Merging with the pod itself keeps what others changed since.
func stripped(pod *corev1.Pod, agentPort string) (*corev1.Pod, error) {
	out := pod.DeepCopy()
	before := statusOf(pod)
	if before != nil {
		drop := func(list []corev1.Container, names []string) []corev1.Container {
			return slices.DeleteFunc(list, func(c corev1.Container) bool { return slices.Contains(names, c.Name) })
		}
		out.Spec.Containers = drop(out.Spec.Containers, before.Containers)
		out.Spec.InitContainers = drop(out.Spec.InitContainers, before.InitContainers)
		if out.Annotations["prometheus.io/port"] == agentPort {
			for name := range out.Annotations {
				switch prometheusName(name) {
				case "prometheus_io_scrape", "prometheus_io_path", "prometheus_io_port":
					delete(out.Annotations, name)
				}
			}
		}
		delete(out.Annotations, nameStatus)
	}
	own, err := parseOverrides(pod)
	if err != nil {
		return nil, err
	}
	add := func(to *[]corev1.Container, list []corev1.Container) {
		for i := range list {
			if find(*to, list[i].Name) == nil {
				*to = append(*to, list[i])
			}
		}
	}
	add(&out.Spec.Containers, own.Containers)
	add(&out.Spec.InitContainers, own.InitContainers)
	return out, nil
}

// merge merges a partial pod with a pod: maps and lists with names entry by entry.
func merge(pod *corev1.Pod, partial map[string]any) (*corev1.Pod, error) {
	original, err := toMap(pod)
	if err != nil {
		return nil, err
	}
	schema, err := strategicpatch.NewPatchMetaFromStruct(corev1.Pod{})
	if err != nil {
		return nil, err
	}
	merged, err := strategicpatch.StrategicMergeMapPatchUsingLookupPatchMeta(original, partial, schema)
	if err != nil {
		return nil, err
	}
	doc, err := json.Marshal(merged)
	if err != nil {
		return nil, err
	}
	out := &corev1.Pod{}
	return out, json.Unmarshal(doc, out)
}

// toMap returns an object as JSON has it.
func toMap(object any) (map[string]any, error) {
	doc, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	var out map[string]any
	return out, json.Unmarshal(doc, &out)
}

// partial returns a pod as merge takes it: a list of containers that is nil would remove all.
func partial(pod *corev1.Pod) (map[string]any, error) {
	if pod.Spec.Containers == nil {
		pod.Spec.Containers = []corev1.Container{}
	}
	return toMap(pod)
}

// mergeContainer merges a container with that of a pod.
func mergeContainer(pod *corev1.Pod, c corev1.Container, initial bool) (*corev1.Pod, error) {
	over := &corev1.Pod{}
	if initial {
		over.Spec.InitContainers = []corev1.Container{c}
	} else {
		over.Spec.Containers = []corev1.Container{c}
	}
	fields, err := partial(over)
	if err != nil {
		return nil, err
	}
	return merge(pod, fields)
}

// reapply merges the containers that a user wrote with the result: what a user says has precedence
// over the template. It records them, so that another injection can do the same. Containers of an
// earlier injection are not the user's.
func reapply(result, original, rendered *corev1.Pod) (*corev1.Pod, error) {
	before := statusOf(original)
	if before == nil {
		before = &status{}
	}
	own, err := parseOverrides(original)
	if err != nil {
		return nil, err
	}
	var used containers
	override := func(name string, injected []string, recorded []corev1.Container, fallback *corev1.Container, initial bool) error {
		match := find(recorded, name)
		if match == nil && !slices.Contains(injected, name) {
			match = fallback
		}
		if match == nil {
			return nil
		}
		c := *match.DeepCopy()
		if c.Image == autoImage {
			c.Image = ""
			if c.ImagePullPolicy == corev1.PullAlways { // the default of the API server for the tag that auto lacks
				c.ImagePullPolicy = ""
			}
		}
		if initial {
			used.InitContainers = append(used.InitContainers, c)
		} else {
			used.Containers = append(used.Containers, c)
		}
		var err error
		result, err = mergeContainer(result, c, initial)
		return err
	}
	for _, name := range namesOf(rendered.Spec.Containers) {
		if err := override(name, before.Containers, own.Containers, find(original.Spec.Containers, name), false); err != nil {
			return nil, fmt.Errorf("merge container %s: %w", name, err)
		}
	}
	for _, name := range namesOf(rendered.Spec.InitContainers) {
		if err := override(name, before.InitContainers, own.InitContainers, findContainer(name, original), true); err != nil {
			return nil, fmt.Errorf("merge container %s: %w", name, err)
		}
	}
	if _, injected := original.Annotations[nameStatus]; !injected && len(used.Containers)+len(used.InitContainers) > 0 {
		doc, err := json.Marshal(used)
		if err != nil {
			return nil, err
		}
		result.Annotations = with(result.Annotations, map[string]string{nameOverrides: string(doc)})
	}
	return result, nil
}

// userOfProxy makes the container that sets up interception agree with the user that the pod's own
// istio-proxy container names.
func (j *job) userOfProxy(result *corev1.Pod) {
	own := findContainer(proxyName, j.pod)
	if own == nil || own.SecurityContext == nil {
		return
	}
	user, group := own.SecurityContext.RunAsUser, own.SecurityContext.RunAsGroup
	c := find(result.Spec.InitContainers, initName)
	if c == nil {
		c = find(result.Spec.InitContainers, validationName)
	}
	if c == nil || user == nil && group == nil {
		return
	}
	tproxy := j.mode() == modeTProxy
	if sidecar := findContainer(proxyName, result); tproxy && user != nil && sidecar != nil && sidecar.SecurityContext != nil {
		sidecar.SecurityContext.RunAsUser = new(int64(0)) // only root can receive such traffic
	}
	if !tproxy && c.Name == validationName && c.SecurityContext != nil {
		if user != nil {
			c.SecurityContext.RunAsUser = user
		}
		if group != nil {
			c.SecurityContext.RunAsGroup = group
		}
	}
	if user == nil || *user == 0 {
		return // traffic of root cannot be told apart
	}
	if i := slices.Index(c.Args, "-u"); i >= 0 && i+1 < len(c.Args) {
		c.Args[i+1] = fmt.Sprint(*user)
	}
}

// order puts the containers in the order in which they must start.
func (j *job) order(pod *corev1.Pod) {
	move := func(list []corev1.Container, name string, first bool) []corev1.Container {
		i := slices.IndexFunc(list, func(c corev1.Container) bool { return c.Name == name })
		if i < 0 {
			return list
		}
		c := list[i]
		list = slices.Delete(list, i, i+1)
		if first {
			return slices.Insert(list, 0, c)
		}
		return append(list, c)
	}
	s := &pod.Spec
	// Last, so that tools that take the first container take the application.
	s.Containers = move(s.Containers, proxyName, j.holds())
	native := find(s.InitContainers, proxyName) != nil
	if native {
		s.InitContainers = move(s.InitContainers, proxyName, true) // other init containers are in the mesh
	}
	s.InitContainers = move(s.InitContainers, validationName, true)
	// Without a native sidecar, other init containers need the network before the proxy runs.
	s.InitContainers = move(s.InitContainers, initName, native)
	if !native {
		s.InitContainers = move(s.InitContainers, coreDumpName, false)
	}
}
