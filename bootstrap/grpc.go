// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package bootstrap

import (
	"errors"
	"net/url"
	"path/filepath"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
)

// GRPCInput is the input of RenderGRPC.
type GRPCInput struct {
	// Node is the id of the proxy.
	Node node.ID
	// Metadata is the metadata of the proxy. Keys without a field are omitted.
	Metadata *node.Metadata
	// Locality is the locality reported by the cloud. It applies if no label sets one.
	Locality Locality
	// Socket is the absolute path of the agent's ADS socket.
	Socket string
	// CertDir is the directory to which the agent writes key and certificates. If empty, there are
	// no files and the application has no mesh identity.
	CertDir string
}

// RenderGRPC returns the JSON bootstrap with which gRPC libraries connect to the control plane
// directly, without Envoy, over the agent's ADS socket.
func RenderGRPC(in GRPCInput) ([]byte, error) {
	switch {
	case in.Metadata == nil:
		return nil, errors.New("render bootstrap of gRPC: the input has no metadata")
	case !filepath.IsAbs(in.Socket):
		return nil, errors.New("render bootstrap of gRPC: the path of the ADS socket is not absolute")
	}
	metadata := *in.Metadata
	metadata.Raw = nil
	metadata.Generator = "grpc"
	rendered := object{
		"xds_servers": []any{object{
			// Encoded as a URL, because gRPC decodes escapes.
			"server_uri":      (&url.URL{Scheme: "unix", Path: filepath.Clean(in.Socket)}).String(),
			"channel_creds":   []any{object{"type": "insecure"}},
			"server_features": []any{"xds_v3"},
		}},
		"node": object{
			"id":       in.Node.String(),
			"locality": localityOf(Input{Metadata: in.Metadata, Locality: in.Locality}),
			"metadata": metadata,
		},
		"server_listener_resource_name_template": "xds.istio.io/grpc/lds/inbound/%s",
	}
	if in.CertDir != "" {
		rendered["certificate_providers"] = object{"default": object{
			"plugin_name": "file_watcher",
			"config": object{
				"certificate_file":    filepath.Join(in.CertDir, "cert-chain.pem"),
				"private_key_file":    filepath.Join(in.CertDir, "key.pem"),
				"ca_certificate_file": filepath.Join(in.CertDir, "root-cert.pem"),
				"refresh_interval":    "900s",
			},
		}}
	}
	return marshal(rendered)
}
