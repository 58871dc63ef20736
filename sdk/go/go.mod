module github.com/tallygate/tallygate/sdk/go

go 1.19
