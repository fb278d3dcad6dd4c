// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// generatorGRPC is GENERATOR in the metadata of a proxyless client.
const generatorGRPC = "grpc"

// proxyOf converts the node of a stream's first request. Errors are gRPC errors that
// say what the proxy has to change.
func proxyOf(n *corev3.Node) (*model.Proxy, error) {
	if n.GetId() == "" {
		return nil, status.Error(codes.InvalidArgument, "missing node information: the first request must carry node.id")
	}
	id, err := node.ParseID(n.Id)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	meta := &node.Metadata{}
	if n.Metadata != nil {
		raw, err := n.Metadata.MarshalJSON()
		if err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "node metadata of %s: %v", n.Id, err)
		}
		if meta, err = node.ParseMetadata(raw); err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "node metadata of %s: %v", n.Id, err)
		}
	}
	ips := node.Addresses(id, meta)
	if len(ips) == 0 {
		return nil, status.Errorf(codes.InvalidArgument, "node %s has no address: neither its id nor INSTANCE_IPS contains one", n.Id)
	}
	p := &model.Proxy{
		ID: id.Name, Role: id.Role, IPs: ips, Domain: id.Domain,
		Namespace: meta.Namespace, ServiceAccount: meta.ServiceAccount, Labels: meta.Labels,
		ClusterID: meta.ClusterID, Interception: model.Interception(meta.InterceptionMode),
		WorkloadEntry: meta.WorkloadEntry, AutoRegisterGroup: meta.AutoRegisterGroup, Network: meta.Network,
		Proxyless: meta.Generator == generatorGRPC,
		Locality:  workloadLocality(n, meta),
		Agent:     meta.IstioVersion, Envoy: envoyVersion(n),
		Node: cmp.Or(meta.NodeName, meta.Labels["kubernetes.io/hostname"]), NetworkView: meta.RequestedNetworkView,
		AutoAllocate: bool(meta.DNSCapture) && bool(meta.DNSAutoAllocate),
		Denies:       bool(meta.Denies), SelfDiscovery: bool(meta.SelfDiscovery),
		Metadata: textsOf(n),
	}
	if p.Namespace == "" {
		p.Namespace = id.Namespace()
	}
	if p.Interception == "" {
		p.Interception = model.InterceptionRedirect
	}
	if meta.HTTPProxyPort != "" {
		port, err := strconv.ParseUint(meta.HTTPProxyPort, 10, 16)
		if err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "node metadata HTTP_PROXY_PORT of %s is %q; it must be a port number", n.Id, meta.HTTPProxyPort)
		}
		p.HTTPProxyPort = uint32(port)
	}
	if p.Settings, err = settingsOf(meta); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "node metadata of %s: %v", n.Id, err)
	}
	return p, served(p)
}

// textsOf returns the values of the node metadata that are text.
func textsOf(n *corev3.Node) map[string]string {
	out := map[string]string{}
	for key, v := range n.GetMetadata().GetFields() {
		if text, ok := v.GetKind().(*structpb.Value_StringValue); ok {
			out[key] = text.StringValue
		}
	}
	return out
}

// workloadLocality returns region/zone/subzone: that of the label of the workload,
// which may have dots instead of slashes, or else that of the machine.
func workloadLocality(n *corev3.Node, meta *node.Metadata) string {
	label := meta.Labels["istio-locality"]
	switch {
	case label == "":
		return localityOf(n)
	case !strings.Contains(label, "/"):
		return strings.ReplaceAll(label, ".", "/")
	}
	return label
}

// served returns an error for proxies whose configuration would be empty. The
// configuration of a gateway does not depend on its interception mode.
func served(p *model.Proxy) error {
	switch p.Role {
	case node.Router:
		return nil
	case node.Sidecar:
	default:
		return status.Errorf(codes.FailedPrecondition, "proxy %s has the role %q; this control plane serves the roles sidecar and router", p.ID, p.Role)
	}
	switch p.Interception {
	case model.InterceptionNone, model.InterceptionRedirect, model.InterceptionTProxy:
	default:
		return status.Errorf(codes.FailedPrecondition,
			"proxy %s has the interception mode %q; this control plane serves REDIRECT, TPROXY and NONE: correct ISTIO_META_INTERCEPTION_MODE at the agent", p.ID, p.Interception)
	}
	return nil
}

// checkIdentity compares the claims of a proxy with the caller's identity, and sets
// the service account if the proxy claims none.
func checkIdentity(p *model.Proxy, caller *authn.Caller) error {
	if caller == nil {
		return nil // the port has no authentication
	}
	mismatch := ""
	switch {
	case caller.ID.Namespace != p.Namespace:
		mismatch = fmt.Sprintf("namespace %q", p.Namespace)
	case p.ServiceAccount != "" && caller.ID.ServiceAccount != p.ServiceAccount:
		mismatch = fmt.Sprintf("service account %q", p.ServiceAccount)
	default:
		p.ServiceAccount = caller.ID.ServiceAccount
		return nil
	}
	return status.Errorf(codes.PermissionDenied, "proxy %s claims the %s, but the stream was opened by %s", p.ID, mismatch, caller.ID)
}

// envoyVersion returns the version that a proxy claims, such as "1.39.3", or "".
func envoyVersion(n *corev3.Node) string {
	if v := n.GetUserAgentBuildVersion().GetVersion(); v != nil {
		return fmt.Sprintf("%d.%d.%d", v.GetMajorNumber(), v.GetMinorNumber(), v.GetPatch())
	}
	return clipped(n.GetUserAgentVersion())
}
