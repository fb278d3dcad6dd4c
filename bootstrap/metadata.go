// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package bootstrap

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
)

const (
	metaPrefix     = "ISTIO_META_"
	metaJSONPrefix = "ISTIO_METAJSON_"
	labelsVariable = metaJSONPrefix + "LABELS"
	localityLabel  = "istio-locality"
	defaultCluster = "istio-proxy"
)

// MetadataInput is the input of NodeMetadata.
type MetadataInput struct {
	// Variables are the environment variables ISTIO_META_* and ISTIO_METAJSON_*. They take
	// precedence over the proxyMetadata of the ProxyConfig.
	Variables map[string]string
	// Labels and Annotations are those of the pod.
	Labels, Annotations map[string]string
	// PlatformLabels are the labels that the cloud assigns to the machine. They count as static
	// labels and take precedence over ISTIO_METAJSON_LABELS.
	PlatformLabels map[string]string
	// Own are the fields that the agent sets itself. They take precedence over variables.
	Own node.Metadata
	// ProxyConfig is included in the metadata. Its proxyMetadata supplies variables.
	ProxyConfig *meshv1alpha1.ProxyConfig
}

// NodeMetadata returns the metadata of a node. The warnings name the variables that were ignored.
func NodeMetadata(in MetadataInput) (*node.Metadata, []string, error) {
	variables := maps.Clone(in.ProxyConfig.GetProxyMetadata())
	if variables == nil {
		variables = map[string]string{}
	}
	maps.Copy(variables, in.Variables)
	raw, static, warnings := rawMetadata(variables)
	if err := setOwn(raw, in.Own); err != nil {
		return nil, nil, err
	}
	doc, err := json.Marshal(raw)
	if err != nil {
		return nil, nil, fmt.Errorf("node metadata: %w", err)
	}
	m, err := node.ParseMetadata(doc)
	if err != nil {
		return nil, nil, fmt.Errorf("%w (from the environment variable %s<key>, a member of %s*, or proxyMetadata)", err, metaPrefix, metaJSONPrefix)
	}
	if len(in.PlatformLabels) > 0 {
		if static == nil {
			static = map[string]string{}
		}
		maps.Copy(static, in.PlatformLabels)
	}
	m.StaticLabels = static
	m.Labels = labels(static, in.Labels)
	m.Annotations = in.Annotations
	if m.ProxyConfig, err = proxyConfigJSON(in.ProxyConfig); err != nil {
		return nil, nil, err
	}
	if len(m.PilotSAN) == 0 && in.ProxyConfig.GetControlPlaneAuthPolicy() == meshv1alpha1.AuthenticationPolicy_MUTUAL_TLS {
		m.PilotSAN = []string{ServerName(in.ProxyConfig.GetDiscoveryAddress())}
	}
	return m, warnings, keepEmpty(m, raw)
}

// keepEmpty keeps the original value of keys whose field is empty, so that the metadata renders
// them: control planes distinguish "false" from an absent key.
func keepEmpty(m *node.Metadata, raw map[string]any) error {
	doc, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("node metadata: %w", err)
	}
	var rendered map[string]json.RawMessage
	if err := json.Unmarshal(doc, &rendered); err != nil {
		return fmt.Errorf("node metadata: %w", err)
	}
	for key, value := range raw {
		if _, ok := rendered[key]; ok {
			continue
		}
		if m.Raw == nil {
			m.Raw = map[string]any{}
		}
		m.Raw[key] = value
	}
	return nil
}

// ServerName returns the name expected in the certificate of a control plane at this address.
func ServerName(discoveryAddress string) string {
	host, _, err := net.SplitHostPort(discoveryAddress)
	if err != nil {
		host = discoveryAddress
	}
	if strings.Contains(discoveryAddress, "localhost") {
		return "istiod.istio-system.svc"
	}
	return host
}

// rawMetadata reads both families of variables. The members of a JSON variable are added at the top
// level; a plain variable with the same key takes precedence.
func rawMetadata(variables map[string]string) (raw map[string]any, static map[string]string, warnings []string) {
	raw = map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		if !strings.HasPrefix(name, metaJSONPrefix) {
			continue
		}
		var members map[string]any
		if err := json.Unmarshal([]byte(variables[name]), &members); err != nil {
			warnings = append(warnings, fmt.Sprintf("%s is ignored: its value is not a JSON object", name))
			continue
		}
		if name == labelsVariable {
			static = map[string]string{}
			for key, value := range members {
				if text, ok := value.(string); ok {
					static[key] = text
				} else {
					static[key] = fmt.Sprint(value)
				}
			}
		} else {
			maps.Copy(raw, members)
		}
	}
	// As in Istio, the labels also appear at the top level, unless another value has the same key.
	for key, value := range static {
		if _, ok := raw[key]; !ok {
			raw[key] = value
		}
	}
	for name, value := range variables {
		if key, ok := strings.CutPrefix(name, metaPrefix); ok && key != "" {
			raw[key] = value
		}
	}
	return raw, static, warnings
}

// setOwn copies the non-empty fields of own to raw.
func setOwn(raw map[string]any, own node.Metadata) error {
	doc, err := json.Marshal(own)
	if err != nil {
		return fmt.Errorf("node metadata: %w", err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(doc, &fields); err != nil {
		return fmt.Errorf("node metadata: %w", err)
	}
	for key, value := range fields {
		raw[key] = value
	}
	return nil
}

// labels merges the labels; those of the pod take precedence over the static ones.
func labels(static, pod map[string]string) map[string]string {
	merged := map[string]string{}
	maps.Copy(merged, static)
	maps.Copy(merged, pod)
	delete(merged, "pod-template-hash")
	if value, ok := merged[localityLabel]; ok && !strings.Contains(value, "/") {
		merged[localityLabel] = strings.ReplaceAll(value, ".", "/")
	}
	return merged
}

// locality splits the locality label into region, zone and subzone.
func locality(labels map[string]string) object {
	result := object{}
	parts := strings.SplitN(labels[localityLabel], "/", 3)
	for i, key := range []string{"region", "zone", "sub_zone"} {
		if i < len(parts) && parts[i] != "" {
			result[key] = parts[i]
		}
	}
	return result
}

// localityOf returns the locality of the labels, or else the one of the cloud.
func localityOf(in Input) object {
	if in.Metadata.Labels[localityLabel] != "" {
		return locality(in.Metadata.Labels)
	}
	result := object{}
	for key, value := range map[string]string{"region": in.Locality.Region, "zone": in.Locality.Zone, "sub_zone": in.Locality.SubZone} {
		if value != "" {
			result[key] = value
		}
	}
	return result
}

// serviceCluster returns the cluster of the node, the service name under which Envoy identifies
// itself.
func serviceCluster(pc *meshv1alpha1.ProxyConfig, m *node.Metadata) string {
	inNamespace := func(name string) string {
		if m.Namespace == "" {
			return name
		}
		return name + "." + m.Namespace
	}
	first := func(names ...string) string {
		for _, name := range names {
			if name != "" {
				return name
			}
		}
		return defaultCluster
	}
	fallback := inNamespace(first(m.Labels["app"], m.WorkloadName))
	if _, ok := pc.GetClusterName().(*meshv1alpha1.ProxyConfig_TracingServiceName_); !ok {
		if name := pc.GetServiceCluster(); name != "" && name != defaultCluster {
			return name
		}
		return fallback
	}
	canonical := first(m.Labels["service.istio.io/canonical-name"], m.Labels["app.kubernetes.io/name"], m.Labels["app"], m.WorkloadName)
	switch pc.GetTracingServiceName() {
	case meshv1alpha1.ProxyConfig_CANONICAL_NAME_ONLY:
		if canonical == defaultCluster {
			return fallback
		}
		return canonical
	case meshv1alpha1.ProxyConfig_CANONICAL_NAME_AND_NAMESPACE:
		return inNamespace(canonical)
	default:
		return fallback
	}
}

// proxyConfigJSON returns the ProxyConfig as deterministic proto JSON.
func proxyConfigJSON(pc *meshv1alpha1.ProxyConfig) (json.RawMessage, error) {
	doc, err := protojson.Marshal(pc)
	if err != nil {
		return nil, fmt.Errorf("node metadata PROXY_CONFIG: %w", err)
	}
	// protojson deliberately varies its white space.
	var value any
	if err := json.Unmarshal(doc, &value); err != nil {
		return nil, fmt.Errorf("node metadata PROXY_CONFIG: %w", err)
	}
	if doc, err = json.Marshal(value); err != nil {
		return nil, fmt.Errorf("node metadata PROXY_CONFIG: %w", err)
	}
	return doc, nil
}

// ParsePodInfo parses a file of the downward API: one key="quoted value" per line.
func ParsePodInfo(data string) (map[string]string, error) {
	values := map[string]string{}
	for i, line := range strings.Split(data, "\n") {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		key, quoted, ok := strings.Cut(line, "=")
		if !ok || key == "" {
			return nil, fmt.Errorf("line %d: %q must be key=\"value\"", i+1, line)
		}
		value, err := strconv.Unquote(quoted)
		if err != nil {
			return nil, fmt.Errorf("line %d: the value of %s must be in double quotes", i+1, key)
		}
		values[key] = value
	}
	return values, nil
}
