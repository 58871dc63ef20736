module driver

go 1.19

require github.com/tallygate/tallygate/sdk/go v0.0.0

replace github.com/tallygate/tallygate/sdk/go => ../../../../sdk/go
