// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inject

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/internal/aliases"
)

//go:embed values.yaml
var defaultValues []byte

// Values are the settings of the injector that do not depend on a pod. Custom templates see all of
// them, the built-in templates use those of the fields.
type Values struct {
	all map[string]any // for custom templates

	Revision text           `json:"revision"`
	Global   globalValues   `json:"global"`
	Pilot    pilotValues    `json:"pilot"`
	Gateways gatewaysValues `json:"gateways"`
	IstioCNI struct {
		Enabled toggle `json:"enabled"` // the older name of pilot.cni.enabled
	} `json:"istio_cni"`
	Webhook struct {
		RewriteProbes toggle `json:"rewriteAppHTTPProbe"`
	} `json:"sidecarInjectorWebhook"`
}

type globalValues struct {
	IstioNamespace   text   `json:"istioNamespace"`
	Hub              text   `json:"hub"`
	Tag              text   `json:"tag"`
	Variant          text   `json:"variant"`
	ImagePullPolicy  text   `json:"imagePullPolicy"`
	ImagePullSecrets []text `json:"imagePullSecrets"`
	LogAsJSON        toggle `json:"logAsJson"`
	NativeNftables   toggle `json:"nativeNftables"`
	MountCerts       toggle `json:"mountMtlsCerts"`
	CAAddress        text   `json:"caAddress"`
	CAName           text   `json:"caName"`
	CertProvider     text   `json:"pilotCertProvider"`
	JWTPolicy        text   `json:"jwtPolicy"`
	MeshID           text   `json:"meshID"`
	Network          text   `json:"network"`
	TrustDomain      text   `json:"trustDomain"`
	TrustBundleName  text   `json:"trustBundleName"`
	Logging          struct {
		Level text `json:"level"`
	} `json:"logging"`
	MultiCluster struct {
		ClusterName text `json:"clusterName"`
	} `json:"multiCluster"`
	SDS struct {
		Token struct {
			Audience text `json:"aud"`
		} `json:"token"`
	} `json:"sds"`
	STS struct {
		ServicePort text `json:"servicePort"`
	} `json:"sts"`
	Proxy     proxyValues `json:"proxy"`
	ProxyInit struct {
		Image text   `json:"image"`
		Force toggle `json:"forceApplyIptables"`
	} `json:"proxy_init"`
}

type proxyValues struct {
	Image                 text                        `json:"image"`
	ClusterDomain         text                        `json:"clusterDomain"`
	LogLevel              text                        `json:"logLevel"`
	ComponentLogLevel     text                        `json:"componentLogLevel"`
	IncludeRanges         text                        `json:"includeIPRanges"`
	ExcludeRanges         text                        `json:"excludeIPRanges"`
	IncludeInboundPorts   text                        `json:"includeInboundPorts"`
	ExcludeInboundPorts   text                        `json:"excludeInboundPorts"`
	IncludeOutboundPorts  text                        `json:"includeOutboundPorts"`
	ExcludeOutboundPorts  text                        `json:"excludeOutboundPorts"`
	OutlierLogPath        text                        `json:"outlierLogPath"`
	Privileged            toggle                      `json:"privileged"`
	CapNetBindService     text                        `json:"capNetBindService"`
	SeccompProfile        *corev1.SeccompProfile      `json:"seccompProfile"`
	StatusPort            text                        `json:"statusPort"`
	Tracer                text                        `json:"tracer"`
	ReadinessInitialDelay text                        `json:"readinessInitialDelaySeconds"`
	ReadinessPeriod       text                        `json:"readinessPeriodSeconds"`
	ReadinessFailures     text                        `json:"readinessFailureThreshold"`
	Resources             corev1.ResourceRequirements `json:"resources"`
	Lifecycle             *corev1.Lifecycle           `json:"lifecycle"`
	HoldApplication       toggle                      `json:"holdApplicationUntilProxyStarts"`
	StartupProbe          struct {
		Enabled  toggle `json:"enabled"`
		Failures text   `json:"failureThreshold"`
	} `json:"startupProbe"`
}

type pilotValues struct {
	CNI struct {
		Enabled  toggle `json:"enabled"`
		Provider text   `json:"provider"`
	} `json:"cni"`
	Env map[string]text `json:"env"`
	CRL text            `json:"crlConfigMapName"`
}

type gatewaysValues struct {
	SecurityContext *corev1.PodSecurityContext `json:"securityContext"`
}

// text is a scalar of any type, as text.
type text string

// UnmarshalJSON implements json.Unmarshaler.
func (t *text) UnmarshalJSON(doc []byte) error {
	switch {
	case len(doc) > 0 && (doc[0] == '{' || doc[0] == '['):
		return errors.New("it is a map or a list; it must be a single value")
	case len(doc) > 0 && doc[0] == '"':
		return json.Unmarshal(doc, (*string)(t))
	case string(doc) != "null":
		*t = text(doc)
	}
	return nil
}

// toggle is a boolean, which may be written as text.
type toggle bool

// UnmarshalJSON implements json.Unmarshaler.
func (f *toggle) UnmarshalJSON(doc []byte) error {
	switch s := strings.Trim(string(doc), `"`); s {
	case "true":
		*f = true
	case "false", "", "null":
		*f = false
	default:
		return fmt.Errorf("it is %s; it must be true or false", clipped(s))
	}
	return nil
}

// ParseValues parses the values of an injector, as YAML or JSON, over the defaults. An empty tag of
// the images becomes tag, the version of this program.
func ParseValues(doc []byte, tag string) (*Values, error) {
	all := map[string]any{}
	if err := yaml.Unmarshal(defaultValues, &all); err != nil {
		return nil, fmt.Errorf("the default values: %w", err)
	}
	var own map[string]any
	if err := aliases.Check(doc); err != nil {
		return nil, fmt.Errorf("the values: %w", err)
	}
	if err := yaml.Unmarshal(doc, &own); err != nil {
		return nil, fmt.Errorf("the values are not a map: %w", err)
	}
	overlay(all, own)
	if global, ok := all["global"].(map[string]any); ok && (global["tag"] == nil || global["tag"] == "") {
		global["tag"] = tag
	}
	doc, err := json.Marshal(all)
	if err != nil {
		return nil, fmt.Errorf("the values: %w", err)
	}
	v := &Values{all: all}
	if err := json.Unmarshal(doc, v); err != nil {
		return nil, fmt.Errorf("the values: %w", err)
	}
	if p := &v.Global.Proxy; p.SeccompProfile != nil && p.SeccompProfile.Type == "" {
		p.SeccompProfile = nil // {} means none
	}
	if v.IstioCNI.Enabled {
		v.Pilot.CNI.Enabled = true
	}
	if v.Global.ProxyInit.Image == "" {
		v.Global.ProxyInit.Image = v.Global.Proxy.Image
	}
	return v, nil
}

// overlay merges over into base: maps merge, other values replace, and null removes.
func overlay(base, over map[string]any) {
	for key, value := range over {
		below, isMap := value.(map[string]any)
		if before, ok := base[key].(map[string]any); ok && isMap {
			overlay(before, below)
			continue
		}
		switch {
		case value == nil:
			delete(base, key)
		case isMap:
			copied := map[string]any{}
			overlay(copied, below)
			base[key] = copied
		default:
			base[key] = value
		}
	}
}

// annotated returns an annotation of a pod, or without one a value.
func annotated(annotations map[string]string, name string, value text) string {
	if s, ok := annotations[name]; ok {
		return s
	}
	return string(value)
}

// with returns a copy of a map of labels or annotations with more entries. A nil map is fine.
func with(m map[string]string, more map[string]string) map[string]string {
	out := make(map[string]string, len(m)+len(more))
	maps.Copy(out, m)
	maps.Copy(out, more)
	return out
}
