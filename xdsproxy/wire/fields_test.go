// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package wire

import (
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	accesslogdatav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	accesslogservicev3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// TestFieldNumbers checks the field numbers against the protobuf definitions.
func TestFieldNumbers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		message proto.Message
		fields  map[protoreflect.Name]protowire.Number
	}{
		{&discoveryv3.DiscoveryRequest{}, map[protoreflect.Name]protowire.Number{
			"version_info": RequestVersion, "node": RequestNode, "resource_names": RequestNames, "type_url": RequestTypeURL, "response_nonce": RequestNonce, "error_detail": RequestError,
		}},
		{&corev3.Node{}, map[protoreflect.Name]protowire.Number{"id": NodeID, "cluster": NodeCluster, "metadata": NodeMetadata, "locality": NodeLocality}},
		{&corev3.Locality{}, map[protoreflect.Name]protowire.Number{"region": LocalityRegion, "zone": LocalityZone, "sub_zone": LocalitySubZone}},
		{&discoveryv3.DeltaDiscoveryRequest{}, map[protoreflect.Name]protowire.Number{
			"node": DeltaRequestNode, "type_url": DeltaRequestTypeURL, "resource_names_subscribe": DeltaRequestSubscribe, "resource_names_unsubscribe": DeltaRequestUnsubscribe,
			"initial_resource_versions": DeltaRequestVersions, "response_nonce": DeltaRequestNonce, "error_detail": DeltaRequestError,
		}},
		{&discoveryv3.DiscoveryResponse{}, map[protoreflect.Name]protowire.Number{
			"version_info": ResponseVersion, "resources": ResponseResources, "type_url": ResponseTypeURL, "nonce": ResponseNonce,
		}},
		{&discoveryv3.DeltaDiscoveryResponse{}, map[protoreflect.Name]protowire.Number{
			"system_version_info": ResponseVersion, "resources": ResponseResources, "type_url": ResponseTypeURL, "nonce": ResponseNonce,
			"removed_resources": ResponseRemoved, "removed_resource_names": ResponseRemovedNames,
		}},
		{&discoveryv3.ResourceName{}, map[protoreflect.Name]protowire.Number{"name": RemovedName}},
		{&discoveryv3.Resource{}, map[protoreflect.Name]protowire.Number{
			"version": ResourceVersion, "resource": ResourceAny, "name": ResourceName, "aliases": ResourceAliases, "ttl": ResourceTTL,
		}},
		{&accesslogservicev3.StreamAccessLogsMessage{}, map[protoreflect.Name]protowire.Number{"identifier": LogsIdentifier, "http_logs": LogsHTTP, "tcp_logs": LogsTCP}},
		{&accesslogservicev3.StreamAccessLogsMessage_TCPAccessLogEntries{}, map[protoreflect.Name]protowire.Number{"log_entry": LogsHTTPEntry}},
		{&accesslogdatav3.TCPAccessLogEntry{}, map[protoreflect.Name]protowire.Number{"common_properties": LogEntryCommon, "connection_properties": LogEntryConnection}},
		{&accesslogdatav3.ConnectionProperties{}, map[protoreflect.Name]protowire.Number{"received_bytes": LogReceived, "sent_bytes": LogSent}},
		{&corev3.Metadata{}, map[protoreflect.Name]protowire.Number{"filter_metadata": MetadataFilters}},
		{&accesslogservicev3.StreamAccessLogsMessage_Identifier{}, map[protoreflect.Name]protowire.Number{"log_name": LogsName}},
		{&accesslogservicev3.StreamAccessLogsMessage_HTTPAccessLogEntries{}, map[protoreflect.Name]protowire.Number{"log_entry": LogsHTTPEntry}},
		{&accesslogdatav3.HTTPAccessLogEntry{}, map[protoreflect.Name]protowire.Number{"common_properties": LogEntryCommon, "request": LogEntryRequest, "response": LogEntryResponse}},
		{&accesslogdatav3.AccessLogCommon{}, map[protoreflect.Name]protowire.Number{
			"downstream_local_address": LogCommonLocal, "tls_properties": LogCommonTLS, "upstream_cluster": LogCommonUpstream, "downstream_direct_remote_address": LogCommonRemote,
			"start_time": LogCommonStart, "response_flags": LogCommonFlags, "duration": LogCommonDuration, "metadata": LogCommonMetadata,
		}},
		{&accesslogdatav3.TLSProperties{}, map[protoreflect.Name]protowire.Number{"tls_sni_hostname": LogTLSName, "peer_certificate_properties": LogTLSPeer}},
		{&accesslogdatav3.TLSProperties_CertificateProperties{}, map[protoreflect.Name]protowire.Number{"subject_alt_name": LogPeerAltName}},
		{&accesslogdatav3.TLSProperties_CertificateProperties_SubjectAltName{}, map[protoreflect.Name]protowire.Number{"uri": LogAltNameURI}},
		{&accesslogdatav3.HTTPRequestProperties{}, map[protoreflect.Name]protowire.Number{
			"authority": LogRequestAuthority, "path": LogRequestPath, "user_agent": LogRequestUserAgent, "forwarded_for": LogRequestForwardedFor,
			"request_id": LogRequestID, "original_path": LogRequestOriginalPath, "request_headers": LogRequestHeaders,
			"request_body_bytes": LogRequestBody,
		}},
		{&accesslogdatav3.HTTPResponseProperties{}, map[protoreflect.Name]protowire.Number{"response_code": LogResponseCode, "response_body_bytes": LogResponseBody, "response_code_details": LogResponseDetails}},
		{&wrapperspb.UInt32Value{}, map[protoreflect.Name]protowire.Number{"value": WrappedValue}},
		{&timestamppb.Timestamp{}, map[protoreflect.Name]protowire.Number{"seconds": TimeSeconds, "nanos": TimeNanos}},
		{&durationpb.Duration{}, map[protoreflect.Name]protowire.Number{"seconds": TimeSeconds, "nanos": TimeNanos}},
		{&corev3.Address{}, map[protoreflect.Name]protowire.Number{"socket_address": AddressSocket}},
		{&corev3.SocketAddress{}, map[protoreflect.Name]protowire.Number{"address": SocketAddress, "port_value": SocketPort}},
		{&corev3.TypedExtensionConfig{}, map[protoreflect.Name]protowire.Number{"name": ExtensionName, "typed_config": ExtensionConfig}},
		{&anypb.Any{}, map[protoreflect.Name]protowire.Number{"type_url": AnyTypeURL, "value": AnyValue}},
		{&status.Status{}, map[protoreflect.Name]protowire.Number{"code": StatusCode, "message": StatusMessage}},
	} {
		d := c.message.ProtoReflect().Descriptor()
		for name, number := range c.fields {
			if f := d.Fields().ByName(name); f == nil || f.Number() != number {
				t.Errorf("%s of %s is %v, the table has %d", name, d.FullName(), f, number)
			}
		}
	}
}
