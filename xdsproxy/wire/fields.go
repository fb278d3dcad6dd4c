// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package wire

import "google.golang.org/protobuf/encoding/protowire"

// The field numbers of the messages of xDS that are read and written without being
// decoded as a whole. A test compares them with the definitions of the messages.
const (
	// DiscoveryRequest.
	RequestVersion protowire.Number = 1
	RequestNode    protowire.Number = 2
	RequestNames   protowire.Number = 3
	RequestTypeURL protowire.Number = 4
	RequestNonce   protowire.Number = 5
	RequestError   protowire.Number = 6

	// Node, and its Locality.
	NodeID          protowire.Number = 1
	NodeCluster     protowire.Number = 2
	NodeMetadata    protowire.Number = 3
	NodeLocality    protowire.Number = 4
	LocalityRegion  protowire.Number = 1
	LocalityZone    protowire.Number = 2
	LocalitySubZone protowire.Number = 3

	// DeltaDiscoveryRequest.
	DeltaRequestNode        protowire.Number = 1
	DeltaRequestTypeURL     protowire.Number = 2
	DeltaRequestSubscribe   protowire.Number = 3
	DeltaRequestUnsubscribe protowire.Number = 4
	DeltaRequestVersions    protowire.Number = 5
	DeltaRequestNonce       protowire.Number = 6
	DeltaRequestError       protowire.Number = 7

	// DiscoveryResponse and DeltaDiscoveryResponse; only the latter has what was
	// removed.
	ResponseVersion      protowire.Number = 1
	ResponseResources    protowire.Number = 2
	ResponseTypeURL      protowire.Number = 4
	ResponseNonce        protowire.Number = 5
	ResponseRemoved      protowire.Number = 6
	ResponseRemovedNames protowire.Number = 8

	// ResourceName as a message, an entry of ResponseRemovedNames.
	RemovedName protowire.Number = 1

	// Resource.
	ResourceVersion protowire.Number = 1
	ResourceAny     protowire.Number = 2
	ResourceName    protowire.Number = 3
	ResourceAliases protowire.Number = 4
	ResourceTTL     protowire.Number = 6

	// TypedExtensionConfig.
	ExtensionName   protowire.Number = 1
	ExtensionConfig protowire.Number = 2

	// StreamAccessLogsMessage, its Identifier, HTTPAccessLogEntries and HTTPAccessLogEntry. The fields of
	// TCPAccessLogEntries have the same numbers.
	LogsIdentifier   protowire.Number = 1
	LogsName         protowire.Number = 2
	LogsHTTP         protowire.Number = 2
	LogsTCP          protowire.Number = 3
	LogsHTTPEntry    protowire.Number = 1
	LogEntryCommon   protowire.Number = 1
	LogEntryRequest  protowire.Number = 3
	LogEntryResponse protowire.Number = 4

	// TCPAccessLogEntry and its ConnectionProperties. The common properties have the number of LogEntryCommon.
	LogEntryConnection protowire.Number = 2
	LogReceived        protowire.Number = 1
	LogSent            protowire.Number = 2

	// AccessLogCommon, its Metadata, TLSProperties and their certificates.
	LogCommonLocal    protowire.Number = 3
	LogCommonTLS      protowire.Number = 4
	LogCommonStart    protowire.Number = 5
	LogCommonUpstream protowire.Number = 15
	LogCommonFlags    protowire.Number = 16
	LogCommonMetadata protowire.Number = 17
	LogCommonRemote   protowire.Number = 20
	LogCommonDuration protowire.Number = 23
	MetadataFilters   protowire.Number = 1
	LogTLSName        protowire.Number = 3
	LogTLSPeer        protowire.Number = 5
	LogPeerAltName    protowire.Number = 1
	LogAltNameURI     protowire.Number = 1

	// HTTPRequestProperties.
	LogRequestAuthority    protowire.Number = 3
	LogRequestPath         protowire.Number = 5
	LogRequestUserAgent    protowire.Number = 6
	LogRequestForwardedFor protowire.Number = 8
	LogRequestID           protowire.Number = 9
	LogRequestOriginalPath protowire.Number = 10
	LogRequestBody         protowire.Number = 12
	LogRequestHeaders      protowire.Number = 13

	// HTTPResponseProperties, and what its response code is.
	LogResponseCode    protowire.Number = 1
	LogResponseBody    protowire.Number = 3
	LogResponseDetails protowire.Number = 6
	WrappedValue       protowire.Number = 1

	// Timestamp and Duration.
	TimeSeconds protowire.Number = 1
	TimeNanos   protowire.Number = 2

	// Address and SocketAddress.
	AddressSocket protowire.Number = 1
	SocketAddress protowire.Number = 2
	SocketPort    protowire.Number = 3

	// google.protobuf.Any, google.rpc.Status, and the entries of maps.
	AnyTypeURL    protowire.Number = 1
	AnyValue      protowire.Number = 2
	StatusCode    protowire.Number = 1
	StatusMessage protowire.Number = 2
	EntryKey      protowire.Number = 1
	EntryValue    protowire.Number = 2
)
