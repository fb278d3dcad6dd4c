// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"crypto/tls"
	"fmt"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	statusv3 "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"
)

// stream is an ADS stream. The caller of open closes it.
type stream struct {
	discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	conn   *grpc.ClientConn
	cancel context.CancelFunc
	node   *corev3.Node
}

// nodeOf returns the node of a sidecar with additional metadata.
func nodeOf(name, namespace, ip string, metadata map[string]any) (*corev3.Node, error) {
	all := map[string]any{
		"NAMESPACE": namespace, "NAME": name, "INSTANCE_IPS": ip, "INTERCEPTION_MODE": "REDIRECT", "CLUSTER_ID": "Kubernetes",
	}
	for key, value := range metadata {
		all[key] = value
		if value == nil {
			delete(all, key)
		}
	}
	meta, err := structpb.NewStruct(all)
	if err != nil {
		return nil, fmt.Errorf("node metadata: %w", err)
	}
	return &corev3.Node{
		Id: "sidecar~" + ip + "~" + name + "." + namespace + "~" + namespace + ".svc.cluster.local", Metadata: meta,
		UserAgentName: "envoy", UserAgentVersionType: &corev3.Node_UserAgentVersion{UserAgentVersion: "1.39.3"},
	}, nil
}

// open opens an ADS stream with a client certificate.
func (p *plane) open(ctx context.Context, pair *tls.Certificate, node *corev3.Node) (*stream, error) {
	conn, err := p.connect(pair)
	if err != nil {
		return nil, err
	}
	return openOn(ctx, conn, node)
}

// openOn opens an ADS stream on a connection, which is closed with the stream.
func openOn(ctx context.Context, conn *grpc.ClientConn, node *corev3.Node) (*stream, error) {
	ctx, cancel := context.WithCancel(ctx)
	ads, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		cancel()
		_ = conn.Close() // return the error of the stream
		return nil, err
	}
	return &stream{ads, conn, cancel, node}, nil
}

func (st *stream) close() {
	st.cancel()
	_ = st.conn.Close() // nothing depends on it
}

// ask subscribes to a type.
func (st *stream) ask(typeURL string, names ...string) error {
	return st.Send(&discoveryv3.DiscoveryRequest{Node: st.node, TypeUrl: typeURL, ResourceNames: names})
}

// next returns the next response of a type. It acknowledges this response and all preceding ones.
func (st *stream) next(typeURL string, names ...string) (*discoveryv3.DiscoveryResponse, error) {
	for {
		r, err := st.Recv()
		if err != nil {
			return nil, err
		}
		of := []string(nil)
		if r.TypeUrl == typeURL {
			of = names
		}
		if err := st.Send(&discoveryv3.DiscoveryRequest{TypeUrl: r.TypeUrl, VersionInfo: r.VersionInfo, ResponseNonce: r.Nonce, ResourceNames: of}); err != nil {
			return nil, err
		}
		if r.TypeUrl == typeURL {
			return r, nil
		}
	}
}

// reject rejects all responses with an error until the stream ends.
func (st *stream) reject(version, message string) {
	for {
		r, err := st.Recv()
		if err != nil {
			return
		}
		if st.refuse(r, version, message) != nil {
			return
		}
	}
}

// refuse rejects a response with an error.
func (st *stream) refuse(r *discoveryv3.DiscoveryResponse, version, message string) error {
	return st.Send(&discoveryv3.DiscoveryRequest{
		TypeUrl: r.TypeUrl, VersionInfo: version, ResponseNonce: r.Nonce, ErrorDetail: &statusv3.Status{Code: 13, Message: message},
	})
}

// asWorkload opens a stream as a workload with truthful claims.
func (p *plane) asWorkload(ctx context.Context, namespace, account, ip string) (*stream, error) {
	pair, err := p.member(ctx, namespace, account)
	if err != nil {
		return nil, err
	}
	node, err := nodeOf(account, namespace, ip, map[string]any{"SERVICE_ACCOUNT": account, "LABELS": map[string]any{"app": account}})
	if err != nil {
		return nil, err
	}
	return p.open(ctx, pair, node)
}

// served opens a stream as a workload and waits for its listeners.
func (p *plane) served(ctx context.Context, namespace, account, ip string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	st, err := p.asWorkload(ctx, namespace, account, ip)
	if err != nil {
		return err
	}
	defer st.close()
	if err := st.ask(resourcev3.ListenerType); err != nil {
		return err
	}
	if _, err = st.next(resourcev3.ListenerType); err != nil {
		return fmt.Errorf("%s/%s gets no listeners: %w", namespace, account, err)
	}
	return nil
}

// openOnShared opens an ADS stream on a connection that is shared with other streams.
func openOnShared(ctx context.Context, conn *grpc.ClientConn, node *corev3.Node) (*stream, error) {
	ads, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		return nil, err
	}
	return &stream{ads, conn, func() {}, node}, nil
}
