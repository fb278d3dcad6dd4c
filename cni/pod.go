// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package cni

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// pod is what the package reads of a Pod.
type pod struct {
	Metadata struct {
		Name              string            `json:"name"`
		Namespace         string            `json:"namespace"`
		UID               string            `json:"uid"`
		ResourceVersion   string            `json:"resourceVersion"`
		DeletionTimestamp string            `json:"deletionTimestamp"`
		Labels            map[string]string `json:"labels"`
		Annotations       map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		HostNetwork    bool        `json:"hostNetwork"`
		InitContainers []container `json:"initContainers"`
		Containers     []container `json:"containers"`
	} `json:"spec"`
	Status struct {
		Phase  string `json:"phase"`
		PodIPs []struct {
			IP string `json:"ip"`
		} `json:"podIPs"`
		InitContainerStatuses []struct {
			Name      string         `json:"name"`
			State     containerState `json:"state"`
			LastState containerState `json:"lastState"`
		} `json:"initContainerStatuses"`
	} `json:"status"`
}

type container struct {
	Name string   `json:"name"`
	Args []string `json:"args"`
	Env  []struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	} `json:"env"`
	SecurityContext struct {
		RunAsUser  int64 `json:"runAsUser"`
		RunAsGroup int64 `json:"runAsGroup"`
	} `json:"securityContext"`
}

type containerState struct {
	Terminated *struct {
		ExitCode int `json:"exitCode"`
	} `json:"terminated"`
}

// Names of containers, labels and annotations.
const (
	containerInit       = "istio-init"
	containerValidation = "istio-validation"
	containerProxy      = "istio-proxy"
	nameInject          = "sidecar.istio.io/inject" // label and annotation
	nameStatus          = "sidecar.istio.io/status"
	nameMode            = "sidecar.istio.io/interceptionMode"
	nameConfigHash      = "kubernetes.io/config.hash" // of static pods
)

// container returns a container or init container, or nil.
func (p *pod) container(name string) *container {
	for _, all := range [][]container{p.Spec.InitContainers, p.Spec.Containers} {
		if i := slices.IndexFunc(all, func(c container) bool { return c.Name == name }); i >= 0 {
			return &all[i]
		}
	}
	return nil
}

func (c *container) env(name string) string {
	for _, v := range c.Env {
		if v.Name == name {
			return v.Value
		}
	}
	return ""
}

// outside returns why a pod gets no rules, or "" if it gets some.
func (p *pod) outside() string {
	proxy := p.container(containerProxy)
	inject, ok := p.Metadata.Labels[nameInject]
	if !ok {
		inject = p.Metadata.Annotations[nameInject]
	}
	wanted, err := strconv.ParseBool(inject)
	_, injected := p.Metadata.Annotations[nameStatus]
	switch {
	case p.Spec.HostNetwork:
		return "it uses the network of the node"
	case p.container(containerInit) != nil:
		return "its init container " + containerInit + " sets the rules"
	case proxy == nil:
		return "it has no container " + containerProxy
	case isTrue(proxy.env("DISABLE_ENVOY")):
		return "its proxy runs without Envoy"
	case len(proxy.Args) > 1 && proxy.Args[0] == "proxy" && proxy.Args[1] != "sidecar":
		return "its proxy is a " + proxy.Args[1]
	case err == nil && !wanted:
		return nameInject + " is " + inject
	case !injected:
		return "it has no annotation " + nameStatus
	case p.Metadata.Annotations[nameMode] == "NONE":
		return nameMode + " is NONE"
	}
	return ""
}

func isTrue(text string) bool {
	is, err := strconv.ParseBool(text)
	return err == nil && is
}

// ownPorts are the inbound ports of agent and Envoy, which are not captured.
var ownPorts = []string{"15020", "15021", "15090"}

// arguments returns the command line of istio-iptables for a pod in scope, without the network
// namespace, and its environment.
func (p *pod) arguments() (args, environ []string, err error) {
	proxy := p.container(containerProxy)
	annotation := func(fallback string, names ...string) string {
		for _, name := range names {
			if value, ok := p.Metadata.Annotations[name]; ok {
				return value
			}
		}
		return fallback
	}
	add := func(flag, value string) { args = append(args, flag, value) }
	id := func(n int64) string {
		if n == 0 {
			n = 1337
		}
		return strconv.FormatInt(n, 10)
	}
	// The ports of Envoy are settings of the mesh, which the pod has in no other place.
	if validation := p.container(containerValidation); validation != nil {
		for i, flag := range validation.Args {
			if (flag == "-p" || flag == "-z") && i+1 < len(validation.Args) {
				add(flag, validation.Args[i+1])
			}
		}
	}
	mode := annotation("REDIRECT", nameMode)
	if mode != "REDIRECT" && mode != "TPROXY" {
		return nil, nil, fmt.Errorf("annotation %s is %q: it must be REDIRECT, TPROXY or NONE", nameMode, mode)
	}
	add("-m", mode)
	add("-u", id(proxy.SecurityContext.RunAsUser))
	add("-g", id(proxy.SecurityContext.RunAsGroup))
	const traffic = "traffic.sidecar.istio.io/"
	add("-i", annotation("*", traffic+"includeOutboundIPRanges"))
	add("-x", annotation("", traffic+"excludeOutboundIPRanges"))
	add("-b", annotation("*", traffic+"includeInboundPorts"))
	add("-d", strings.Join(append([]string{annotation("", traffic+"excludeInboundPorts")}, ownPorts...), ","))
	add("-q", annotation("", traffic+"includeOutboundPorts"))
	add("-o", annotation("", traffic+"excludeOutboundPorts"))
	add("-k", annotation("", "istio.io/reroute-virtual-interfaces", traffic+"kubevirtInterfaces"))
	add("-c", annotation("", traffic+"excludeInterfaces"))
	// The resolvers of a pod are in a file that does not exist yet.
	args = append(args, "--capture-all-dns")
	for _, name := range []string{
		"ISTIO_META_DNS_CAPTURE", "INVALID_DROP", "ISTIO_DUAL_STACK", "ISTIO_AGENT_DUAL_STACK",
		"ISTIO_OUTBOUND_OWNER_GROUPS", "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", "ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR",
	} {
		if value := proxy.env(name); value != "" {
			environ = append(environ, name+"="+value)
		}
	}
	return args, environ, nil
}
