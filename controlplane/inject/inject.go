// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inject

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/internal/tlspolicy"
)

// Injector adds proxies to pods. It is immutable.
type Injector struct {
	Config *Config
	Values *Values
	Mesh   *meshv1alpha1.MeshConfig
	// Revision is that of the control plane; empty means default.
	Revision string
	// Native runs the proxy as a native sidecar unless a pod says otherwise.
	Native bool
	// Compliance restricts TLS of agents.
	Compliance tlspolicy.Policy
	// ProxyConfigs returns the objects of this kind in a namespace, the oldest first; nil means that
	// there are none.
	ProxyConfigs func(namespace string) []*model.Config
	// Annotations returns those of [NamespaceAnnotations] that a namespace has. It is set on OpenShift,
	// where they define the user of the proxy.
	Annotations func(namespace string) (map[string]string, error)
}

// Request is a pod to inject.
type Request struct {
	Pod       *corev1.Pod // not modified
	Namespace string      // of the pod, which may have none
	// Env are variables of the proxy, which the URL of a webhook sets.
	Env map[string]string

	owner *owner // of files; otherwise the pod names it
}

// Result is the outcome of an injection.
type Result struct {
	Pod      *corev1.Pod // the request's if it is skipped
	Skipped  string      // why, empty if the pod received a proxy
	Warnings []string
}

// Inject decides whether a pod receives a proxy, and adds it. An error is about the pod: it names
// the annotation, its value and the cure.
func (in *Injector) Inject(r Request) (*Result, error) {
	d := in.Config.decide(r.Pod, r.Namespace)
	out := &Result{Pod: r.Pod}
	if d.warning != "" {
		out.Warnings = append(out.Warnings, d.warning)
	}
	if !d.inject {
		out.Skipped = d.reason
		return out, nil
	}
	r.Pod = in.withoutAssigned(r.Pod)
	j, err := in.newJob(r)
	if err != nil {
		return nil, err
	}
	out.Warnings = append(out.Warnings, j.warnings...)
	rendered, result, err := in.render(j, r.Pod)
	if err != nil {
		return nil, err
	}
	if result, err = reapply(result, r.Pod, rendered); err != nil {
		return nil, err
	}
	j.userOfProxy(result)
	if err := j.finish(result, rendered, in.Config.InjectedAnnotations); err != nil {
		return nil, err
	}
	if policy := r.Pod.Spec.DNSPolicy; policy != "" && policy != corev1.DNSClusterFirst && policy != corev1.DNSClusterFirstWithHostNet {
		out.Warnings = append(out.Warnings, fmt.Sprintf("dnsPolicy is %s: the proxy may not find the control plane; use %s", policy, corev1.DNSClusterFirst))
	}
	out.Pod = result
	return out, nil
}

// newJob checks a pod and collects what its templates use.
func (in *Injector) newJob(r Request) (*job, error) {
	if err := CheckAnnotations(r.Pod.Annotations); err != nil {
		return nil, err
	}
	proxy, err := in.proxyConfig(r.Pod, r.Namespace)
	if err != nil {
		return nil, err
	}
	j := &job{mesh: in.Mesh, proxy: proxy, values: in.Values, revision: in.Revision, native: in.Native, compliance: in.Compliance, env: r.Env}
	if j.revision == "" {
		j.revision = "default"
	}
	warning, err := in.user(j, r.Namespace)
	if err != nil {
		return nil, err
	}
	if warning != "" {
		j.warnings = append(j.warnings, warning)
	}
	if s, ok := r.Pod.Annotations[nameNative]; ok {
		j.native = s == "true"
	}
	if r.owner != nil {
		j.owner = *r.owner
	} else {
		j.owner = ownerOf(r.Pod, r.Namespace)
	}
	j.pod, err = stripped(r.Pod, strconv.Itoa(int(in.Mesh.GetDefaultConfig().GetStatusPort())))
	return j, err
}

// render merges the templates of a pod with it. rendered is what the templates result in alone.
func (in *Injector) render(j *job, pod *corev1.Pod) (rendered, result *corev1.Pod, err error) {
	names := in.Config.DefaultTemplates
	if list, ok := pod.Annotations[nameTemplates]; ok {
		names = items(list)
	}
	rendered, result = &corev1.Pod{}, pod
	for _, name := range in.Config.templates(names) {
		fields, err := in.template(j, name)
		if err != nil {
			return nil, nil, err
		}
		// merge changes its argument.
		if rendered, err = merge(rendered, runtime.DeepCopyJSON(fields)); err != nil {
			return nil, nil, fmt.Errorf("template %s is not a part of a pod: %w", name, err)
		}
		result = moveOverrides(result, rendered, j.native)
		if result, err = merge(result, fields); err != nil {
			return nil, nil, fmt.Errorf("merge template %s with the pod: %w", name, err)
		}
	}
	return rendered, result, nil
}

// template renders one template.
func (in *Injector) template(j *job, name string) (map[string]any, error) {
	if source, ok := in.Config.Templates[name]; ok {
		return j.custom(name, source)
	}
	builtin, ok := builtins()[name]
	if !ok {
		return nil, fmt.Errorf("annotation %s has %s: %s", nameTemplates, clipped(name), in.Config.known())
	}
	pod := builtin(j)
	if err := j.err(); err != nil {
		return nil, err
	}
	return partial(pod)
}

// moveOverrides moves a user's istio-proxy container to the init containers if the template has a
// native sidecar.
func moveOverrides(pod, rendered *corev1.Pod, native bool) *corev1.Pod {
	if !native || find(rendered.Spec.InitContainers, proxyName) == nil {
		return pod
	}
	i := slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == proxyName })
	if i < 0 {
		return pod
	}
	out := pod.DeepCopy()
	own := out.Spec.Containers[i]
	out.Spec.Containers = slices.Delete(out.Spec.Containers, i, i+1)
	if find(out.Spec.InitContainers, proxyName) == nil {
		out.Spec.InitContainers = append(out.Spec.InitContainers, own)
	}
	return out
}

// finish applies to the merged pod what no template can.
func (j *job) finish(pod, rendered *corev1.Pod, annotations map[string]string) error {
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	if sidecar := findContainer(proxyName, pod); sidecar != nil {
		e := environment(sidecar.Env)
		e.setAll(j.env)
		if len(j.env) > 0 { // custom templates may have taken the values
			e.set("ISTIO_META_CLUSTER_ID", j.cluster())
		}
		e.setFilled("ISTIO_META_NETWORK", j.network())
		sidecar.Env = e
	}
	if err := j.mergeMetrics(pod); err != nil {
		return err
	}
	if err := j.rewriteProbes(pod); err != nil {
		return err
	}
	if network := j.network(); network != "" {
		pod.Labels[nameNetwork] = network
	}
	doc, err := json.Marshal(newStatus(rendered, j.revision))
	if err != nil {
		return fmt.Errorf("annotation %s: %w", nameStatus, err)
	}
	pod.Annotations[nameStatus] = string(doc)
	maps.Copy(pod.Annotations, annotations)
	j.order(pod)
	return nil
}

// PathVariables returns the variables that the path of a webhook's URL sets: /inject/NAME/VALUE/...
// cluster and net are names for the variables with the cluster and the network. A slash in a value
// is written --slash--.
func PathVariables(path string) (map[string]string, error) {
	rest, ok := strings.CutPrefix(strings.TrimSuffix(path, "/"), "/inject")
	if !ok || rest != "" && rest[0] != '/' {
		return nil, fmt.Errorf("the path is %s; it must start with /inject", clipped(path))
	}
	if rest == "" {
		return nil, nil
	}
	if pairs, old := strings.CutPrefix(rest[1:], ":ENV:"); old {
		out := map[string]string{}
		for pair := range strings.SplitSeq(pairs, ":ENV:") {
			if name, value, ok := strings.Cut(pair, "="); ok && name != "" {
				out[variableOf(name)] = value
			}
		}
		return out, nil
	}
	parts := strings.Split(rest[1:], "/")
	if len(parts)%2 != 0 {
		return nil, errors.New("the path has a name without a value: write /inject/NAME/VALUE")
	}
	out := map[string]string{}
	for i := 0; i < len(parts); i += 2 {
		if parts[i] == "" {
			return nil, errors.New("the path has an empty name: write /inject/NAME/VALUE")
		}
		out[variableOf(parts[i])] = strings.ReplaceAll(parts[i+1], "--slash--", "/")
	}
	return out, nil
}

// variableOf returns the variable for a name of a path.
func variableOf(name string) string {
	switch name {
	case "cluster":
		return "ISTIO_META_CLUSTER_ID"
	case "net":
		return "ISTIO_META_NETWORK"
	}
	return strings.ToUpper(name)
}
