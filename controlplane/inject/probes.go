// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inject

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// proberVariable is the variable with the probes that the agent runs for the kubelet.
const proberVariable = "ISTIO_KUBE_APP_PROBERS"

// prober is one of them. The names are those of pods.
type prober struct {
	HTTPGet        *corev1.HTTPGetAction   `json:"httpGet,omitempty"`
	TCPSocket      *corev1.TCPSocketAction `json:"tcpSocket,omitempty"`
	GRPC           *corev1.GRPCAction      `json:"grpc,omitempty"`
	TimeoutSeconds int32                   `json:"timeoutSeconds,omitempty"`
}

// handler is a probe or a hook of a container, which can be changed.
type handler struct {
	path    string // of the agent
	http    **corev1.HTTPGetAction
	tcp     **corev1.TCPSocketAction
	grpc    **corev1.GRPCAction // nil for hooks
	timeout int32
}

// handlers returns the probes and hooks of a container.
func handlers(c *corev1.Container) []handler {
	var out []handler
	for name, p := range map[string]*corev1.Probe{"readyz": c.ReadinessProbe, "livez": c.LivenessProbe, "startupz": c.StartupProbe} {
		if p != nil {
			out = append(out, handler{"/app-health/" + c.Name + "/" + name, &p.HTTPGet, &p.TCPSocket, &p.GRPC, p.TimeoutSeconds})
		}
	}
	if c.Lifecycle != nil {
		for name, h := range map[string]*corev1.LifecycleHandler{"prestopz": c.Lifecycle.PreStop, "poststartz": c.Lifecycle.PostStart} {
			if h != nil {
				out = append(out, handler{path: "/app-lifecycle/" + c.Name + "/" + name, http: &h.HTTPGet, tcp: &h.TCPSocket})
			}
		}
	}
	return out
}

// rewriteProbes makes the agent run the probes and hooks of the application: the kubelet has no
// certificate of the mesh. Commands stay.
func (j *job) rewriteProbes(pod *corev1.Pod) error {
	sidecar := findContainer(proxyName, pod)
	if sidecar == nil {
		return nil
	}
	rewrite := bool(j.values.Webhook.RewriteProbes)
	if b, err := strconv.ParseBool(pod.Annotations[nameRewriteProbes]); err == nil {
		rewrite = b
	}
	if !rewrite {
		return nil
	}
	port := j.proxy.GetStatusPort()
	if s, ok := pod.Annotations[nameStatusPort]; ok {
		n, err := strconv.ParseUint(s, 10, 16)
		if err != nil {
			return fmt.Errorf("annotation %s: %w", nameStatusPort, err) // checked before
		}
		port = int32(n)
	}
	probers := map[string]prober{}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if list[i].Name == proxyName {
				continue
			}
			named := map[string]int32{}
			for _, p := range list[i].Ports {
				if p.Name != "" {
					named[p.Name] = p.ContainerPort
				}
			}
			for _, h := range handlers(&list[i]) {
				if p := h.prober(named, port); p != nil {
					probers[h.path] = *p
				}
				h.rewrite(port)
			}
		}
	}
	return setProbers(sidecar, probers)
}

// setProbers adds probes to those of an earlier injection, which have precedence: the pod no longer
// has the original ones.
func setProbers(sidecar *corev1.Container, probers map[string]prober) error {
	i := slices.IndexFunc(sidecar.Env, func(v corev1.EnvVar) bool { return v.Name == proberVariable })
	if i >= 0 {
		before := map[string]prober{}
		if err := json.Unmarshal([]byte(sidecar.Env[i].Value), &before); err != nil {
			return fmt.Errorf("variable %s of container %s is not JSON with probes; remove it: %w", proberVariable, proxyName, err)
		}
		maps.Copy(probers, before)
	}
	if len(probers) == 0 {
		return nil
	}
	doc, err := json.Marshal(probers)
	if err != nil {
		return fmt.Errorf("the probes of the pod: %w", err)
	}
	e := environment(sidecar.Env)
	e.set(proberVariable, string(doc))
	sidecar.Env = e
	return nil
}

// prober returns the probe that the agent runs; nil for commands, probes that are rewritten
// already, and names of ports that do not exist.
func (h handler) prober(named map[string]int32, agent int32) *prober {
	p := &prober{TimeoutSeconds: h.timeout}
	var port *intstr.IntOrString
	switch {
	case *h.http != nil:
		p.HTTPGet = (*h.http).DeepCopy()
		port = &p.HTTPGet.Port
	case *h.tcp != nil:
		p.TCPSocket = (*h.tcp).DeepCopy()
		port = &p.TCPSocket.Port
	case h.grpc != nil && *h.grpc != nil:
		p.GRPC = (*h.grpc).DeepCopy()
		return p
	default:
		return nil
	}
	if port.Type == intstr.String {
		number, ok := named[port.StrVal]
		if !ok {
			return nil
		}
		*port = intstr.FromInt32(number)
	} else if port.IntVal == agent {
		return nil
	}
	return p
}

// rewrite changes a probe or a hook to a request to the agent, with the headers of the original.
func (h handler) rewrite(port int32) {
	to := &corev1.HTTPGetAction{}
	switch {
	case *h.http != nil:
		to = (*h.http).DeepCopy()
	case *h.tcp != nil:
		*h.tcp = nil
	case h.grpc != nil && *h.grpc != nil:
		*h.grpc = nil
	default:
		return
	}
	to.Path, to.Port = h.path, intstr.FromInt32(port)
	if to.Scheme == corev1.URISchemeHTTPS {
		to.Scheme = corev1.URISchemeHTTP // the agent uses HTTPS
	}
	*h.http = to
}
