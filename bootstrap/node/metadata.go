// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package node

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"strings"
)

// Metadata is the metadata of a proxy's node. Empty fields are not rendered.
type Metadata struct {
	// ProxyConfig is the resolved ProxyConfig as proto JSON.
	ProxyConfig json.RawMessage `json:"PROXY_CONFIG,omitempty"`

	IstioVersion string `json:"ISTIO_VERSION,omitempty"`
	ProxySHA     string `json:"ISTIO_PROXY_SHA,omitempty"`
	Revision     string `json:"ISTIO_REVISION,omitempty"`

	Name           string `json:"NAME,omitempty"`
	Namespace      string `json:"NAMESPACE,omitempty"`
	ServiceAccount string `json:"SERVICE_ACCOUNT,omitempty"`
	NodeName       string `json:"NODE_NAME,omitempty"`
	WorkloadName   string `json:"WORKLOAD_NAME,omitempty"`
	Owner          string `json:"OWNER,omitempty"`
	MeshID         string `json:"MESH_ID,omitempty"`
	ClusterID      string `json:"CLUSTER_ID,omitempty"`
	Network        string `json:"NETWORK,omitempty"`
	AppContainers  string `json:"APP_CONTAINERS,omitempty"`

	InterceptionMode  string `json:"INTERCEPTION_MODE,omitempty"`
	Generator         string `json:"GENERATOR,omitempty"`
	IdleTimeout       string `json:"IDLE_TIMEOUT,omitempty"`
	HTTP10            string `json:"HTTP10,omitempty"`
	DeniedByHeader    string `json:"DENIED_BY_HEADER,omitempty"`
	HTTPProxyPort     string `json:"HTTP_PROXY_PORT,omitempty"`
	AutoRegisterGroup string `json:"AUTO_REGISTER_GROUP,omitempty"`
	WorkloadEntry     string `json:"WORKLOAD_ENTRY,omitempty"`
	UnprivilegedPod   string `json:"UNPRIVILEGED_POD,omitempty"`
	Base              string `json:"BASE,omitempty"`
	CloudRunAddr      string `json:"CLOUDRUN_ADDR,omitempty"`

	TLSServerCertChain string `json:"TLS_SERVER_CERT_CHAIN,omitempty"`
	TLSServerKey       string `json:"TLS_SERVER_KEY,omitempty"`
	TLSServerRootCert  string `json:"TLS_SERVER_ROOT_CERT,omitempty"`
	TLSClientCertChain string `json:"TLS_CLIENT_CERT_CHAIN,omitempty"`
	TLSClientKey       string `json:"TLS_CLIENT_KEY,omitempty"`
	TLSClientRootCert  string `json:"TLS_CLIENT_ROOT_CERT,omitempty"`

	Labels           map[string]string `json:"LABELS,omitempty"`
	StaticLabels     map[string]string `json:"STATIC_LABELS,omitempty"`
	Annotations      map[string]string `json:"ANNOTATIONS,omitempty"`
	PlatformMetadata map[string]string `json:"PLATFORM_METADATA,omitempty"`

	InstanceIPs          List     `json:"INSTANCE_IPS,omitempty"`
	RequestedNetworkView List     `json:"REQUESTED_NETWORK_VIEW,omitempty"`
	PodPorts             PodPorts `json:"POD_PORTS,omitempty"`

	// Records are the headers of requests that RecordLog has. Empty means that there is no such log.
	Records List `json:"RECORDS,omitempty"`
	// ReportsKeys is true if the agent reads UnknownKeyLog.
	ReportsKeys Bool `json:"REPORTS_KEYS,omitempty"`
	// Denies is true if the bootstrap requests the filter DeniedPeers.
	Denies Bool `json:"DENIED_PEERS,omitempty"`
	// DelimitedStats is true if the bootstrap splits the names of stats at a semicolon.
	DelimitedStats  Bool `json:"DELIMITED_STATS,omitempty"`
	DNSCapture      Bool `json:"DNS_CAPTURE,omitempty"`
	DNSAutoAllocate Bool `json:"DNS_AUTO_ALLOCATE,omitempty"`
	EnableHBONE     Bool `json:"ENABLE_HBONE,omitempty"`
	// SelfDiscovery is true if the bootstrap requests the endpoints of LocalCluster.
	SelfDiscovery                Bool `json:"ENABLE_SELF_DISCOVERY,omitempty"`
	ExitOnZeroActiveConnections  Bool `json:"EXIT_ON_ZERO_ACTIVE_CONNECTIONS,omitempty"`
	InboundListenerExactBalance  Bool `json:"INBOUND_LISTENER_EXACT_BALANCE,omitempty"`
	OutboundListenerExactBalance Bool `json:"OUTBOUND_LISTENER_EXACT_BALANCE,omitempty"`

	EnvoyStatusPort     Port     `json:"ENVOY_STATUS_PORT,omitempty"`
	EnvoyPrometheusPort Port     `json:"ENVOY_PROMETHEUS_PORT,omitempty"`
	STSPort             string   `json:"STS_PORT,omitempty"`
	PilotSAN            []string `json:"PILOT_SAN,omitempty"`
	OutlierLogPath      string   `json:"OUTLIER_LOG_PATH,omitempty"`
	Credential          string   `json:"credential,omitempty"`

	// Raw holds the keys that have no field above, in their natural JSON types. It may also contain
	// a key that has a field; this value is rendered only if the field is empty, which preserves
	// the difference between "false" and an absent key.
	Raw map[string]any `json:"-"`
}

// typed is Metadata without its methods, so that encoding/json handles only the fields.
type typed Metadata

// MarshalJSON implements json.Marshaler. It renders the fields and adds the keys of Raw. The output
// is deterministic.
func (m Metadata) MarshalJSON() ([]byte, error) {
	fields, err := marshal(typed(m))
	if err != nil || len(m.Raw) == 0 {
		return fields, err
	}
	all := make(map[string]any, len(m.Raw)+16)
	maps.Copy(all, m.Raw)
	var set map[string]json.RawMessage
	if err := json.Unmarshal(fields, &set); err != nil {
		return nil, err
	}
	for k, v := range set {
		all[k] = v
	}
	return marshal(all)
}

// UnmarshalJSON implements json.Unmarshaler.
func (m *Metadata) UnmarshalJSON(data []byte) error {
	parsed, err := ParseMetadata(data)
	if err != nil {
		return err
	}
	*m = *parsed
	return nil
}

// ParseMetadata parses a JSON object. It returns an error that names the key if a value has the
// wrong type. Keys without a field are stored in Raw.
func ParseMetadata(data []byte) (*Metadata, error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(data, &all); err != nil {
		return nil, fmt.Errorf("node metadata is not a JSON object: %w", err)
	}
	m := &Metadata{}
	known, value := keys(), reflect.ValueOf(m).Elem()
	for k, v := range all {
		if i, ok := known[k]; ok {
			if err := json.Unmarshal(v, value.Field(i).Addr().Interface()); err != nil {
				return nil, fmt.Errorf("node metadata %s: %w", k, err)
			}
			continue
		}
		var raw any
		if err := json.Unmarshal(v, &raw); err != nil {
			return nil, fmt.Errorf("node metadata %s: %w", k, err)
		}
		if m.Raw == nil {
			m.Raw = map[string]any{}
		}
		m.Raw[k] = raw
	}
	if string(m.ProxyConfig) == "null" {
		m.ProxyConfig = nil
	}
	return m, nil
}

// keys maps the JSON key of each field to the field's index.
func keys() map[string]int {
	t := reflect.TypeFor[Metadata]()
	index := make(map[string]int, t.NumField())
	for i := range t.NumField() {
		if name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ","); name != "-" {
			index[name] = i
		}
	}
	return index
}

// marshal is json.Marshal without HTML escaping.
func marshal(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(buf.Bytes(), "\n"), nil
}
