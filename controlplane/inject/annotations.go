// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inject

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
)

// Annotations and labels of pods. They are Istio's.
const (
	nameInject            = "sidecar.istio.io/inject"
	nameStatus            = "sidecar.istio.io/status"
	nameInterception      = "sidecar.istio.io/interceptionMode"
	nameNative            = "sidecar.istio.io/nativeSidecar"
	nameImage             = "sidecar.istio.io/proxyImage"
	nameImageType         = "sidecar.istio.io/proxyImageType"
	nameCPU               = "sidecar.istio.io/proxyCPU"
	nameMemory            = "sidecar.istio.io/proxyMemory"
	nameCPULimit          = "sidecar.istio.io/proxyCPULimit"
	nameMemoryLimit       = "sidecar.istio.io/proxyMemoryLimit"
	nameLogLevel          = "sidecar.istio.io/logLevel"
	nameComponentLogLevel = "sidecar.istio.io/componentLogLevel"
	nameAgentLogLevel     = "sidecar.istio.io/agentLogLevel"
	nameUserVolume        = "sidecar.istio.io/userVolume"
	nameUserMount         = "sidecar.istio.io/userVolumeMount"
	nameBootstrap         = "sidecar.istio.io/bootstrapOverride"
	nameRewriteProbes     = "sidecar.istio.io/rewriteAppHTTPProbers"
	nameBind              = "sidecar.istio.io/capNetBindService"
	nameStatusPort        = "status.sidecar.istio.io/port"
	nameInitialDelay      = "readiness.status.sidecar.istio.io/initialDelaySeconds"
	namePeriod            = "readiness.status.sidecar.istio.io/periodSeconds"
	nameFailures          = "readiness.status.sidecar.istio.io/failureThreshold"
	nameIncludeRanges     = "traffic.sidecar.istio.io/includeOutboundIPRanges"
	nameExcludeRanges     = "traffic.sidecar.istio.io/excludeOutboundIPRanges"
	nameIncludeInbound    = "traffic.sidecar.istio.io/includeInboundPorts"
	nameExcludeInbound    = "traffic.sidecar.istio.io/excludeInboundPorts"
	nameIncludeOutbound   = "traffic.sidecar.istio.io/includeOutboundPorts"
	nameExcludeOutbound   = "traffic.sidecar.istio.io/excludeOutboundPorts"
	nameExcludeInterfaces = "traffic.sidecar.istio.io/excludeInterfaces"
	nameKubevirt          = "traffic.sidecar.istio.io/kubevirtInterfaces"
	nameReroute           = "istio.io/reroute-virtual-interfaces"
	nameRevision          = "istio.io/rev"
	nameNetwork           = "topology.istio.io/network"
	nameProxyConfig       = "proxy.istio.io/config"
	nameOverrides         = "proxy.istio.io/overrides"
	nameTemplates         = "inject.istio.io/templates"
	nameMergeMetrics      = "prometheus.istio.io/merge-metrics"
	nameDefaultContainer  = "kubectl.kubernetes.io/default-container"
	nameDefaultLogs       = "kubectl.kubernetes.io/default-logs-container"
	nameMultus            = "k8s.v1.cni.cncf.io/networks"
	nameTLSMode           = "security.istio.io/tlsMode"
	nameTunnel            = "networking.istio.io/tunnel"
	nameCanonical         = "service.istio.io/canonical-name"
	nameCanonicalRevision = "service.istio.io/canonical-revision"
	nameWorkload          = "service.istio.io/workload-name"
	nameDatadog           = "apm.datadoghq.com/env"
)

// annotationChecks returns the check of each annotation whose value can be wrong. The errors say
// what the value must be.
func annotationChecks() map[string]func(string) error {
	return map[string]func(string) error{
		nameInterception:      oneOf("REDIRECT", "TPROXY", "NONE"),
		nameNative:            oneOf("true", "false"),
		nameRewriteProbes:     isBool,
		nameMergeMetrics:      isBool,
		nameCPU:               isQuantity,
		nameMemory:            isQuantity,
		nameCPULimit:          isQuantity,
		nameMemoryLimit:       isQuantity,
		nameStatusPort:        isPort,
		nameInitialDelay:      isCount,
		namePeriod:            isCount,
		nameFailures:          isCount,
		nameIncludeRanges:     orAll(isRanges),
		nameExcludeRanges:     isRanges,
		nameIncludeInbound:    orAll(isPorts),
		nameExcludeInbound:    isPorts,
		nameIncludeOutbound:   orAll(isPorts),
		nameExcludeOutbound:   isPorts,
		nameExcludeInterfaces: isInterfaces,
		nameKubevirt:          isInterfaces,
		nameReroute:           isInterfaces,
		nameProxyConfig:       isProxyConfig,
		nameUserVolume:        isNamedObjects,
		nameUserMount:         isNamedObjects,
		nameBootstrap:         isObjectName,
		nameOverrides:         isContainers,
	}
}

// CheckAnnotations returns an error that lists every wrong annotation of a pod, one on a line.
func CheckAnnotations(annotations map[string]string) error {
	checks := annotationChecks()
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(annotations)) {
		check, ok := checks[name]
		if !ok {
			continue
		}
		if err := check(annotations[name]); err != nil {
			errs = append(errs, fmt.Errorf("annotation %s is %s: %w", name, clipped(annotations[name]), err))
		}
	}
	return errors.Join(errs...)
}

func oneOf(values ...string) func(string) error {
	return func(s string) error {
		if slices.Contains(values, s) {
			return nil
		}
		return errors.New("it must be one of " + strings.Join(values, ", "))
	}
}

func isBool(s string) error {
	if _, err := strconv.ParseBool(s); err != nil {
		return errors.New("it must be true or false")
	}
	return nil
}

func isQuantity(s string) error {
	if _, err := resource.ParseQuantity(s); err != nil {
		return errors.New("it must be a quantity of Kubernetes, such as 100m or 128Mi")
	}
	return nil
}

func isPort(s string) error {
	if _, err := strconv.ParseUint(strings.TrimSpace(s), 10, 16); err != nil {
		return errors.New("it must be a port, from 0 to 65535")
	}
	return nil
}

func isCount(s string) error {
	if _, err := strconv.ParseUint(s, 10, 31); err != nil {
		return errors.New("it must be a number of at least 0")
	}
	return nil
}

// orAll also accepts "*".
func orAll(check func(string) error) func(string) error {
	return func(s string) error {
		if s == "*" || check(s) == nil {
			return nil
		}
		return fmt.Errorf("%w, or *", check(s))
	}
}

// items returns the parts of a list with commas, none for an empty one.
func items(s string) []string {
	if strings.TrimSpace(s) == "" {
		return nil
	}
	parts := strings.Split(s, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}

func isRanges(s string) error {
	for _, item := range items(s) {
		if _, err := netip.ParsePrefix(item); err != nil {
			return errors.New("it must be a list of networks, such as 10.0.0.0/8,fd00::/8")
		}
	}
	return nil
}

func isPorts(s string) error {
	for _, item := range items(s) {
		if isPort(item) != nil {
			return errors.New("it must be a list of ports, such as 80,443")
		}
	}
	return nil
}

// isInterfaces accepts what the kernel accepts as the name of a network interface.
func isInterfaces(s string) error {
	for _, item := range items(s) {
		if item == "" || item == "." || item == ".." || len(item) > 15 ||
			strings.ContainsFunc(item, func(r rune) bool { return r <= ' ' || r > '~' || r == '/' || r == ':' }) {
			return errors.New("it must be a list of network interfaces, such as net1,net2, with at most 15 letters each")
		}
	}
	return nil
}

func isProxyConfig(s string) error {
	config, err := meshconfig.ApplyProxyConfig(meshconfig.DefaultProxyConfig(), s)
	if err != nil {
		return err
	}
	return meshconfig.ValidateProxyConfig(config)
}

func isNamedObjects(s string) error {
	var objects map[string]map[string]any
	if err := json.Unmarshal([]byte(s), &objects); err != nil {
		return fmt.Errorf("it must be JSON, a map from the names of volumes to their fields: %w", err)
	}
	return nil
}

func isObjectName(s string) error {
	if len(validation.IsDNS1123Subdomain(s)) > 0 {
		return errors.New("it must be the name of a ConfigMap")
	}
	return nil
}

func isContainers(s string) error {
	var c containers
	if err := json.Unmarshal([]byte(s), &c); err != nil {
		return fmt.Errorf("it must be JSON with containers and initContainers; injection writes it; remove it: %w", err)
	}
	return nil
}
