// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sds

import (
	"strings"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
)

// sotw is the state-of-the-world variant: each request names the whole
// subscription. Answers hold only what the client lacks, which the protocol
// allows for this type.
type sotw struct {
	stream secretv3.SecretDiscoveryService_StreamSecretsServer
}

func (v sotw) receive() (*request, error) {
	req, err := v.stream.Recv()
	if err != nil {
		return nil, err
	}
	return &request{
		typeURL: req.GetTypeUrl(), nonce: req.GetResponseNonce(), rejection: rejection(req.GetErrorDetail()),
		subscribe: func(s *subscription) { s.replace(req.GetResourceNames()) },
	}, nil
}

// send leaves unknown names out: the variant cannot say that something does not
// exist.
func (v sotw) send(id *Identity, nonce string, names, _ []string) (bool, error) {
	if len(names) == 0 {
		return false, nil
	}
	resp, err := discoveryResponse(id, nonce, names)
	if err != nil {
		return false, err
	}
	return true, v.stream.Send(resp)
}

func discoveryResponse(id *Identity, nonce string, names []string) (*discoveryv3.DiscoveryResponse, error) {
	resp := &discoveryv3.DiscoveryResponse{TypeUrl: secretType, Nonce: nonce}
	var versions []string
	for _, name := range names {
		resource, err := secret(id, name)
		if err != nil {
			return nil, err
		}
		resp.Resources = append(resp.Resources, resource)
		versions = append(versions, version(id, name))
	}
	resp.VersionInfo = strings.Join(versions, ".")
	return resp, nil
}

// delta is the incremental variant.
type delta struct {
	stream secretv3.SecretDiscoveryService_DeltaSecretsServer
}

func (v delta) receive() (*request, error) {
	req, err := v.stream.Recv()
	if err != nil {
		return nil, err
	}
	return &request{
		typeURL: req.GetTypeUrl(), nonce: req.GetResponseNonce(), rejection: rejection(req.GetErrorDetail()), always: true,
		subscribe: func(s *subscription) {
			s.remove(req.GetResourceNamesUnsubscribe())
			s.add(req.GetResourceNamesSubscribe(), req.GetInitialResourceVersions())
		},
	}, nil
}

func (v delta) send(id *Identity, nonce string, names, unknown []string) (bool, error) {
	if len(names)+len(unknown) == 0 {
		return false, nil
	}
	resp := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: secretType, Nonce: nonce, RemovedResources: unknown}
	for _, name := range names {
		resource, err := secret(id, name)
		if err != nil {
			return false, err
		}
		resp.Resources = append(resp.Resources, &discoveryv3.Resource{Name: name, Version: version(id, name), Resource: resource})
	}
	return true, v.stream.Send(resp)
}

// rejection returns why the client did not take an answer, or "" if it did.
func rejection(detail *rpcstatus.Status) string {
	if detail == nil {
		return ""
	}
	if detail.GetMessage() == "" {
		return "no reason given"
	}
	return detail.GetMessage()
}
