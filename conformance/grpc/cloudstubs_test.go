// SPDX-License-Identifier: Apache-2.0

package grpc_test

import (
	"context"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/protobuf/types/known/emptypb"
)

// This file has a server for each service of Cloud KMS and of Pub/Sub. Each method records its
// request and answers with what the test has prepared. Streams are in cloud_test.go.

type autokeyAdminStub struct {
	kmspb.UnimplementedAutokeyAdminServer
	*recorder
}

func (s autokeyAdminStub) UpdateAutokeyConfig(ctx context.Context, in *kmspb.UpdateAutokeyConfigRequest) (*kmspb.AutokeyConfig, error) {
	return answer[*kmspb.AutokeyConfig](ctx, s.recorder, "UpdateAutokeyConfig", in)
}

func (s autokeyAdminStub) GetAutokeyConfig(ctx context.Context, in *kmspb.GetAutokeyConfigRequest) (*kmspb.AutokeyConfig, error) {
	return answer[*kmspb.AutokeyConfig](ctx, s.recorder, "GetAutokeyConfig", in)
}

func (s autokeyAdminStub) ShowEffectiveAutokeyConfig(ctx context.Context, in *kmspb.ShowEffectiveAutokeyConfigRequest) (*kmspb.ShowEffectiveAutokeyConfigResponse, error) {
	return answer[*kmspb.ShowEffectiveAutokeyConfigResponse](ctx, s.recorder, "ShowEffectiveAutokeyConfig", in)
}

type autokeyStub struct {
	kmspb.UnimplementedAutokeyServer
	*recorder
}

func (s autokeyStub) CreateKeyHandle(ctx context.Context, in *kmspb.CreateKeyHandleRequest) (*longrunningpb.Operation, error) {
	return answer[*longrunningpb.Operation](ctx, s.recorder, "CreateKeyHandle", in)
}

func (s autokeyStub) GetKeyHandle(ctx context.Context, in *kmspb.GetKeyHandleRequest) (*kmspb.KeyHandle, error) {
	return answer[*kmspb.KeyHandle](ctx, s.recorder, "GetKeyHandle", in)
}

func (s autokeyStub) ListKeyHandles(ctx context.Context, in *kmspb.ListKeyHandlesRequest) (*kmspb.ListKeyHandlesResponse, error) {
	return answer[*kmspb.ListKeyHandlesResponse](ctx, s.recorder, "ListKeyHandles", in)
}

type ekmServiceStub struct {
	kmspb.UnimplementedEkmServiceServer
	*recorder
}

func (s ekmServiceStub) ListEkmConnections(ctx context.Context, in *kmspb.ListEkmConnectionsRequest) (*kmspb.ListEkmConnectionsResponse, error) {
	return answer[*kmspb.ListEkmConnectionsResponse](ctx, s.recorder, "ListEkmConnections", in)
}

func (s ekmServiceStub) GetEkmConnection(ctx context.Context, in *kmspb.GetEkmConnectionRequest) (*kmspb.EkmConnection, error) {
	return answer[*kmspb.EkmConnection](ctx, s.recorder, "GetEkmConnection", in)
}

func (s ekmServiceStub) CreateEkmConnection(ctx context.Context, in *kmspb.CreateEkmConnectionRequest) (*kmspb.EkmConnection, error) {
	return answer[*kmspb.EkmConnection](ctx, s.recorder, "CreateEkmConnection", in)
}

func (s ekmServiceStub) UpdateEkmConnection(ctx context.Context, in *kmspb.UpdateEkmConnectionRequest) (*kmspb.EkmConnection, error) {
	return answer[*kmspb.EkmConnection](ctx, s.recorder, "UpdateEkmConnection", in)
}

func (s ekmServiceStub) GetEkmConfig(ctx context.Context, in *kmspb.GetEkmConfigRequest) (*kmspb.EkmConfig, error) {
	return answer[*kmspb.EkmConfig](ctx, s.recorder, "GetEkmConfig", in)
}

func (s ekmServiceStub) UpdateEkmConfig(ctx context.Context, in *kmspb.UpdateEkmConfigRequest) (*kmspb.EkmConfig, error) {
	return answer[*kmspb.EkmConfig](ctx, s.recorder, "UpdateEkmConfig", in)
}

func (s ekmServiceStub) VerifyConnectivity(ctx context.Context, in *kmspb.VerifyConnectivityRequest) (*kmspb.VerifyConnectivityResponse, error) {
	return answer[*kmspb.VerifyConnectivityResponse](ctx, s.recorder, "VerifyConnectivity", in)
}

type hsmManagementStub struct {
	kmspb.UnimplementedHsmManagementServer
	*recorder
}

func (s hsmManagementStub) ListSingleTenantHsmInstances(ctx context.Context, in *kmspb.ListSingleTenantHsmInstancesRequest) (*kmspb.ListSingleTenantHsmInstancesResponse, error) {
	return answer[*kmspb.ListSingleTenantHsmInstancesResponse](ctx, s.recorder, "ListSingleTenantHsmInstances", in)
}

func (s hsmManagementStub) GetSingleTenantHsmInstance(ctx context.Context, in *kmspb.GetSingleTenantHsmInstanceRequest) (*kmspb.SingleTenantHsmInstance, error) {
	return answer[*kmspb.SingleTenantHsmInstance](ctx, s.recorder, "GetSingleTenantHsmInstance", in)
}

func (s hsmManagementStub) CreateSingleTenantHsmInstance(ctx context.Context, in *kmspb.CreateSingleTenantHsmInstanceRequest) (*longrunningpb.Operation, error) {
	return answer[*longrunningpb.Operation](ctx, s.recorder, "CreateSingleTenantHsmInstance", in)
}

func (s hsmManagementStub) CreateSingleTenantHsmInstanceProposal(ctx context.Context, in *kmspb.CreateSingleTenantHsmInstanceProposalRequest) (*longrunningpb.Operation, error) {
	return answer[*longrunningpb.Operation](ctx, s.recorder, "CreateSingleTenantHsmInstanceProposal", in)
}

func (s hsmManagementStub) ApproveSingleTenantHsmInstanceProposal(ctx context.Context, in *kmspb.ApproveSingleTenantHsmInstanceProposalRequest) (*kmspb.ApproveSingleTenantHsmInstanceProposalResponse, error) {
	return answer[*kmspb.ApproveSingleTenantHsmInstanceProposalResponse](ctx, s.recorder, "ApproveSingleTenantHsmInstanceProposal", in)
}

func (s hsmManagementStub) ExecuteSingleTenantHsmInstanceProposal(ctx context.Context, in *kmspb.ExecuteSingleTenantHsmInstanceProposalRequest) (*longrunningpb.Operation, error) {
	return answer[*longrunningpb.Operation](ctx, s.recorder, "ExecuteSingleTenantHsmInstanceProposal", in)
}

func (s hsmManagementStub) GetSingleTenantHsmInstanceProposal(ctx context.Context, in *kmspb.GetSingleTenantHsmInstanceProposalRequest) (*kmspb.SingleTenantHsmInstanceProposal, error) {
	return answer[*kmspb.SingleTenantHsmInstanceProposal](ctx, s.recorder, "GetSingleTenantHsmInstanceProposal", in)
}

func (s hsmManagementStub) ListSingleTenantHsmInstanceProposals(ctx context.Context, in *kmspb.ListSingleTenantHsmInstanceProposalsRequest) (*kmspb.ListSingleTenantHsmInstanceProposalsResponse, error) {
	return answer[*kmspb.ListSingleTenantHsmInstanceProposalsResponse](ctx, s.recorder, "ListSingleTenantHsmInstanceProposals", in)
}

func (s hsmManagementStub) DeleteSingleTenantHsmInstanceProposal(ctx context.Context, in *kmspb.DeleteSingleTenantHsmInstanceProposalRequest) (*emptypb.Empty, error) {
	return answer[*emptypb.Empty](ctx, s.recorder, "DeleteSingleTenantHsmInstanceProposal", in)
}

type keyManagementServiceStub struct {
	kmspb.UnimplementedKeyManagementServiceServer
	*recorder
}

func (s keyManagementServiceStub) ListKeyRings(ctx context.Context, in *kmspb.ListKeyRingsRequest) (*kmspb.ListKeyRingsResponse, error) {
	return answer[*kmspb.ListKeyRingsResponse](ctx, s.recorder, "ListKeyRings", in)
}

func (s keyManagementServiceStub) ListCryptoKeys(ctx context.Context, in *kmspb.ListCryptoKeysRequest) (*kmspb.ListCryptoKeysResponse, error) {
	return answer[*kmspb.ListCryptoKeysResponse](ctx, s.recorder, "ListCryptoKeys", in)
}

func (s keyManagementServiceStub) ListCryptoKeyVersions(ctx context.Context, in *kmspb.ListCryptoKeyVersionsRequest) (*kmspb.ListCryptoKeyVersionsResponse, error) {
	return answer[*kmspb.ListCryptoKeyVersionsResponse](ctx, s.recorder, "ListCryptoKeyVersions", in)
}

func (s keyManagementServiceStub) ListImportJobs(ctx context.Context, in *kmspb.ListImportJobsRequest) (*kmspb.ListImportJobsResponse, error) {
	return answer[*kmspb.ListImportJobsResponse](ctx, s.recorder, "ListImportJobs", in)
}

func (s keyManagementServiceStub) ListRetiredResources(ctx context.Context, in *kmspb.ListRetiredResourcesRequest) (*kmspb.ListRetiredResourcesResponse, error) {
	return answer[*kmspb.ListRetiredResourcesResponse](ctx, s.recorder, "ListRetiredResources", in)
}

func (s keyManagementServiceStub) GetKeyRing(ctx context.Context, in *kmspb.GetKeyRingRequest) (*kmspb.KeyRing, error) {
	return answer[*kmspb.KeyRing](ctx, s.recorder, "GetKeyRing", in)
}

func (s keyManagementServiceStub) GetCryptoKey(ctx context.Context, in *kmspb.GetCryptoKeyRequest) (*kmspb.CryptoKey, error) {
	return answer[*kmspb.CryptoKey](ctx, s.recorder, "GetCryptoKey", in)
}

func (s keyManagementServiceStub) GetCryptoKeyVersion(ctx context.Context, in *kmspb.GetCryptoKeyVersionRequest) (*kmspb.CryptoKeyVersion, error) {
	return answer[*kmspb.CryptoKeyVersion](ctx, s.recorder, "GetCryptoKeyVersion", in)
}

func (s keyManagementServiceStub) GetPublicKey(ctx context.Context, in *kmspb.GetPublicKeyRequest) (*kmspb.PublicKey, error) {
	return answer[*kmspb.PublicKey](ctx, s.recorder, "GetPublicKey", in)
}

func (s keyManagementServiceStub) GetImportJob(ctx context.Context, in *kmspb.GetImportJobRequest) (*kmspb.ImportJob, error) {
	return answer[*kmspb.ImportJob](ctx, s.recorder, "GetImportJob", in)
}

func (s keyManagementServiceStub) GetRetiredResource(ctx context.Context, in *kmspb.GetRetiredResourceRequest) (*kmspb.RetiredResource, error) {
	return answer[*kmspb.RetiredResource](ctx, s.recorder, "GetRetiredResource", in)
}

func (s keyManagementServiceStub) CreateKeyRing(ctx context.Context, in *kmspb.CreateKeyRingRequest) (*kmspb.KeyRing, error) {
	return answer[*kmspb.KeyRing](ctx, s.recorder, "CreateKeyRing", in)
}

func (s keyManagementServiceStub) CreateCryptoKey(ctx context.Context, in *kmspb.CreateCryptoKeyRequest) (*kmspb.CryptoKey, error) {
	return answer[*kmspb.CryptoKey](ctx, s.recorder, "CreateCryptoKey", in)
}

func (s keyManagementServiceStub) CreateCryptoKeyVersion(ctx context.Context, in *kmspb.CreateCryptoKeyVersionRequest) (*kmspb.CryptoKeyVersion, error) {
	return answer[*kmspb.CryptoKeyVersion](ctx, s.recorder, "CreateCryptoKeyVersion", in)
}

func (s keyManagementServiceStub) DeleteCryptoKey(ctx context.Context, in *kmspb.DeleteCryptoKeyRequest) (*longrunningpb.Operation, error) {
	return answer[*longrunningpb.Operation](ctx, s.recorder, "DeleteCryptoKey", in)
}

func (s keyManagementServiceStub) DeleteCryptoKeyVersion(ctx context.Context, in *kmspb.DeleteCryptoKeyVersionRequest) (*longrunningpb.Operation, error) {
	return answer[*longrunningpb.Operation](ctx, s.recorder, "DeleteCryptoKeyVersion", in)
}

func (s keyManagementServiceStub) ImportCryptoKeyVersion(ctx context.Context, in *kmspb.ImportCryptoKeyVersionRequest) (*kmspb.CryptoKeyVersion, error) {
	return answer[*kmspb.CryptoKeyVersion](ctx, s.recorder, "ImportCryptoKeyVersion", in)
}

func (s keyManagementServiceStub) ImportTrustedKeyWrappedCryptoKeyVersion(ctx context.Context, in *kmspb.ImportTrustedKeyWrappedCryptoKeyVersionRequest) (*kmspb.CryptoKeyVersion, error) {
	return answer[*kmspb.CryptoKeyVersion](ctx, s.recorder, "ImportTrustedKeyWrappedCryptoKeyVersion", in)
}

func (s keyManagementServiceStub) ExportTrustedKeyWrappedCryptoKeyVersion(ctx context.Context, in *kmspb.ExportTrustedKeyWrappedCryptoKeyVersionRequest) (*kmspb.ExportTrustedKeyWrappedCryptoKeyVersionResponse, error) {
	return answer[*kmspb.ExportTrustedKeyWrappedCryptoKeyVersionResponse](ctx, s.recorder, "ExportTrustedKeyWrappedCryptoKeyVersion", in)
}

func (s keyManagementServiceStub) CreateImportJob(ctx context.Context, in *kmspb.CreateImportJobRequest) (*kmspb.ImportJob, error) {
	return answer[*kmspb.ImportJob](ctx, s.recorder, "CreateImportJob", in)
}

func (s keyManagementServiceStub) UpdateCryptoKey(ctx context.Context, in *kmspb.UpdateCryptoKeyRequest) (*kmspb.CryptoKey, error) {
	return answer[*kmspb.CryptoKey](ctx, s.recorder, "UpdateCryptoKey", in)
}

func (s keyManagementServiceStub) UpdateCryptoKeyVersion(ctx context.Context, in *kmspb.UpdateCryptoKeyVersionRequest) (*kmspb.CryptoKeyVersion, error) {
	return answer[*kmspb.CryptoKeyVersion](ctx, s.recorder, "UpdateCryptoKeyVersion", in)
}

func (s keyManagementServiceStub) UpdateCryptoKeyPrimaryVersion(ctx context.Context, in *kmspb.UpdateCryptoKeyPrimaryVersionRequest) (*kmspb.CryptoKey, error) {
	return answer[*kmspb.CryptoKey](ctx, s.recorder, "UpdateCryptoKeyPrimaryVersion", in)
}

func (s keyManagementServiceStub) DestroyCryptoKeyVersion(ctx context.Context, in *kmspb.DestroyCryptoKeyVersionRequest) (*kmspb.CryptoKeyVersion, error) {
	return answer[*kmspb.CryptoKeyVersion](ctx, s.recorder, "DestroyCryptoKeyVersion", in)
}

func (s keyManagementServiceStub) RestoreCryptoKeyVersion(ctx context.Context, in *kmspb.RestoreCryptoKeyVersionRequest) (*kmspb.CryptoKeyVersion, error) {
	return answer[*kmspb.CryptoKeyVersion](ctx, s.recorder, "RestoreCryptoKeyVersion", in)
}

func (s keyManagementServiceStub) Encrypt(ctx context.Context, in *kmspb.EncryptRequest) (*kmspb.EncryptResponse, error) {
	return answer[*kmspb.EncryptResponse](ctx, s.recorder, "Encrypt", in)
}

func (s keyManagementServiceStub) Decrypt(ctx context.Context, in *kmspb.DecryptRequest) (*kmspb.DecryptResponse, error) {
	return answer[*kmspb.DecryptResponse](ctx, s.recorder, "Decrypt", in)
}

func (s keyManagementServiceStub) RawEncrypt(ctx context.Context, in *kmspb.RawEncryptRequest) (*kmspb.RawEncryptResponse, error) {
	return answer[*kmspb.RawEncryptResponse](ctx, s.recorder, "RawEncrypt", in)
}

func (s keyManagementServiceStub) RawDecrypt(ctx context.Context, in *kmspb.RawDecryptRequest) (*kmspb.RawDecryptResponse, error) {
	return answer[*kmspb.RawDecryptResponse](ctx, s.recorder, "RawDecrypt", in)
}

func (s keyManagementServiceStub) AsymmetricSign(ctx context.Context, in *kmspb.AsymmetricSignRequest) (*kmspb.AsymmetricSignResponse, error) {
	return answer[*kmspb.AsymmetricSignResponse](ctx, s.recorder, "AsymmetricSign", in)
}

func (s keyManagementServiceStub) AsymmetricDecrypt(ctx context.Context, in *kmspb.AsymmetricDecryptRequest) (*kmspb.AsymmetricDecryptResponse, error) {
	return answer[*kmspb.AsymmetricDecryptResponse](ctx, s.recorder, "AsymmetricDecrypt", in)
}

func (s keyManagementServiceStub) MacSign(ctx context.Context, in *kmspb.MacSignRequest) (*kmspb.MacSignResponse, error) {
	return answer[*kmspb.MacSignResponse](ctx, s.recorder, "MacSign", in)
}

func (s keyManagementServiceStub) MacVerify(ctx context.Context, in *kmspb.MacVerifyRequest) (*kmspb.MacVerifyResponse, error) {
	return answer[*kmspb.MacVerifyResponse](ctx, s.recorder, "MacVerify", in)
}

func (s keyManagementServiceStub) Decapsulate(ctx context.Context, in *kmspb.DecapsulateRequest) (*kmspb.DecapsulateResponse, error) {
	return answer[*kmspb.DecapsulateResponse](ctx, s.recorder, "Decapsulate", in)
}

func (s keyManagementServiceStub) GenerateRandomBytes(ctx context.Context, in *kmspb.GenerateRandomBytesRequest) (*kmspb.GenerateRandomBytesResponse, error) {
	return answer[*kmspb.GenerateRandomBytesResponse](ctx, s.recorder, "GenerateRandomBytes", in)
}

type publisherStub struct {
	pubsubpb.UnimplementedPublisherServer
	*recorder
}

func (s publisherStub) CreateTopic(ctx context.Context, in *pubsubpb.Topic) (*pubsubpb.Topic, error) {
	return answer[*pubsubpb.Topic](ctx, s.recorder, "CreateTopic", in)
}

func (s publisherStub) UpdateTopic(ctx context.Context, in *pubsubpb.UpdateTopicRequest) (*pubsubpb.Topic, error) {
	return answer[*pubsubpb.Topic](ctx, s.recorder, "UpdateTopic", in)
}

func (s publisherStub) Publish(ctx context.Context, in *pubsubpb.PublishRequest) (*pubsubpb.PublishResponse, error) {
	return answer[*pubsubpb.PublishResponse](ctx, s.recorder, "Publish", in)
}

func (s publisherStub) GetTopic(ctx context.Context, in *pubsubpb.GetTopicRequest) (*pubsubpb.Topic, error) {
	return answer[*pubsubpb.Topic](ctx, s.recorder, "GetTopic", in)
}

func (s publisherStub) ListTopics(ctx context.Context, in *pubsubpb.ListTopicsRequest) (*pubsubpb.ListTopicsResponse, error) {
	return answer[*pubsubpb.ListTopicsResponse](ctx, s.recorder, "ListTopics", in)
}

func (s publisherStub) ListTopicSubscriptions(ctx context.Context, in *pubsubpb.ListTopicSubscriptionsRequest) (*pubsubpb.ListTopicSubscriptionsResponse, error) {
	return answer[*pubsubpb.ListTopicSubscriptionsResponse](ctx, s.recorder, "ListTopicSubscriptions", in)
}

func (s publisherStub) ListTopicSnapshots(ctx context.Context, in *pubsubpb.ListTopicSnapshotsRequest) (*pubsubpb.ListTopicSnapshotsResponse, error) {
	return answer[*pubsubpb.ListTopicSnapshotsResponse](ctx, s.recorder, "ListTopicSnapshots", in)
}

func (s publisherStub) DeleteTopic(ctx context.Context, in *pubsubpb.DeleteTopicRequest) (*emptypb.Empty, error) {
	return answer[*emptypb.Empty](ctx, s.recorder, "DeleteTopic", in)
}

func (s publisherStub) DetachSubscription(ctx context.Context, in *pubsubpb.DetachSubscriptionRequest) (*pubsubpb.DetachSubscriptionResponse, error) {
	return answer[*pubsubpb.DetachSubscriptionResponse](ctx, s.recorder, "DetachSubscription", in)
}

type subscriberStub struct {
	pubsubpb.UnimplementedSubscriberServer
	*recorder
}

func (s subscriberStub) CreateSubscription(ctx context.Context, in *pubsubpb.Subscription) (*pubsubpb.Subscription, error) {
	return answer[*pubsubpb.Subscription](ctx, s.recorder, "CreateSubscription", in)
}

func (s subscriberStub) GetSubscription(ctx context.Context, in *pubsubpb.GetSubscriptionRequest) (*pubsubpb.Subscription, error) {
	return answer[*pubsubpb.Subscription](ctx, s.recorder, "GetSubscription", in)
}

func (s subscriberStub) UpdateSubscription(ctx context.Context, in *pubsubpb.UpdateSubscriptionRequest) (*pubsubpb.Subscription, error) {
	return answer[*pubsubpb.Subscription](ctx, s.recorder, "UpdateSubscription", in)
}

func (s subscriberStub) ListSubscriptions(ctx context.Context, in *pubsubpb.ListSubscriptionsRequest) (*pubsubpb.ListSubscriptionsResponse, error) {
	return answer[*pubsubpb.ListSubscriptionsResponse](ctx, s.recorder, "ListSubscriptions", in)
}

func (s subscriberStub) DeleteSubscription(ctx context.Context, in *pubsubpb.DeleteSubscriptionRequest) (*emptypb.Empty, error) {
	return answer[*emptypb.Empty](ctx, s.recorder, "DeleteSubscription", in)
}

func (s subscriberStub) ModifyAckDeadline(ctx context.Context, in *pubsubpb.ModifyAckDeadlineRequest) (*emptypb.Empty, error) {
	return answer[*emptypb.Empty](ctx, s.recorder, "ModifyAckDeadline", in)
}

func (s subscriberStub) Acknowledge(ctx context.Context, in *pubsubpb.AcknowledgeRequest) (*emptypb.Empty, error) {
	return answer[*emptypb.Empty](ctx, s.recorder, "Acknowledge", in)
}

func (s subscriberStub) Pull(ctx context.Context, in *pubsubpb.PullRequest) (*pubsubpb.PullResponse, error) {
	return answer[*pubsubpb.PullResponse](ctx, s.recorder, "Pull", in)
}

func (s subscriberStub) ModifyPushConfig(ctx context.Context, in *pubsubpb.ModifyPushConfigRequest) (*emptypb.Empty, error) {
	return answer[*emptypb.Empty](ctx, s.recorder, "ModifyPushConfig", in)
}

func (s subscriberStub) GetSnapshot(ctx context.Context, in *pubsubpb.GetSnapshotRequest) (*pubsubpb.Snapshot, error) {
	return answer[*pubsubpb.Snapshot](ctx, s.recorder, "GetSnapshot", in)
}

func (s subscriberStub) ListSnapshots(ctx context.Context, in *pubsubpb.ListSnapshotsRequest) (*pubsubpb.ListSnapshotsResponse, error) {
	return answer[*pubsubpb.ListSnapshotsResponse](ctx, s.recorder, "ListSnapshots", in)
}

func (s subscriberStub) CreateSnapshot(ctx context.Context, in *pubsubpb.CreateSnapshotRequest) (*pubsubpb.Snapshot, error) {
	return answer[*pubsubpb.Snapshot](ctx, s.recorder, "CreateSnapshot", in)
}

func (s subscriberStub) UpdateSnapshot(ctx context.Context, in *pubsubpb.UpdateSnapshotRequest) (*pubsubpb.Snapshot, error) {
	return answer[*pubsubpb.Snapshot](ctx, s.recorder, "UpdateSnapshot", in)
}

func (s subscriberStub) DeleteSnapshot(ctx context.Context, in *pubsubpb.DeleteSnapshotRequest) (*emptypb.Empty, error) {
	return answer[*emptypb.Empty](ctx, s.recorder, "DeleteSnapshot", in)
}

func (s subscriberStub) Seek(ctx context.Context, in *pubsubpb.SeekRequest) (*pubsubpb.SeekResponse, error) {
	return answer[*pubsubpb.SeekResponse](ctx, s.recorder, "Seek", in)
}

type schemaServiceStub struct {
	pubsubpb.UnimplementedSchemaServiceServer
	*recorder
}

func (s schemaServiceStub) CreateSchema(ctx context.Context, in *pubsubpb.CreateSchemaRequest) (*pubsubpb.Schema, error) {
	return answer[*pubsubpb.Schema](ctx, s.recorder, "CreateSchema", in)
}

func (s schemaServiceStub) GetSchema(ctx context.Context, in *pubsubpb.GetSchemaRequest) (*pubsubpb.Schema, error) {
	return answer[*pubsubpb.Schema](ctx, s.recorder, "GetSchema", in)
}

func (s schemaServiceStub) ListSchemas(ctx context.Context, in *pubsubpb.ListSchemasRequest) (*pubsubpb.ListSchemasResponse, error) {
	return answer[*pubsubpb.ListSchemasResponse](ctx, s.recorder, "ListSchemas", in)
}

func (s schemaServiceStub) ListSchemaRevisions(ctx context.Context, in *pubsubpb.ListSchemaRevisionsRequest) (*pubsubpb.ListSchemaRevisionsResponse, error) {
	return answer[*pubsubpb.ListSchemaRevisionsResponse](ctx, s.recorder, "ListSchemaRevisions", in)
}

func (s schemaServiceStub) CommitSchema(ctx context.Context, in *pubsubpb.CommitSchemaRequest) (*pubsubpb.Schema, error) {
	return answer[*pubsubpb.Schema](ctx, s.recorder, "CommitSchema", in)
}

func (s schemaServiceStub) RollbackSchema(ctx context.Context, in *pubsubpb.RollbackSchemaRequest) (*pubsubpb.Schema, error) {
	return answer[*pubsubpb.Schema](ctx, s.recorder, "RollbackSchema", in)
}

func (s schemaServiceStub) DeleteSchemaRevision(ctx context.Context, in *pubsubpb.DeleteSchemaRevisionRequest) (*pubsubpb.Schema, error) {
	return answer[*pubsubpb.Schema](ctx, s.recorder, "DeleteSchemaRevision", in)
}

func (s schemaServiceStub) DeleteSchema(ctx context.Context, in *pubsubpb.DeleteSchemaRequest) (*emptypb.Empty, error) {
	return answer[*emptypb.Empty](ctx, s.recorder, "DeleteSchema", in)
}

func (s schemaServiceStub) ValidateSchema(ctx context.Context, in *pubsubpb.ValidateSchemaRequest) (*pubsubpb.ValidateSchemaResponse, error) {
	return answer[*pubsubpb.ValidateSchemaResponse](ctx, s.recorder, "ValidateSchema", in)
}

func (s schemaServiceStub) ValidateMessage(ctx context.Context, in *pubsubpb.ValidateMessageRequest) (*pubsubpb.ValidateMessageResponse, error) {
	return answer[*pubsubpb.ValidateMessageResponse](ctx, s.recorder, "ValidateMessage", in)
}
